"""Experience: what episodes taught, written by an extractor, kept in a bank, handed to those who play (Complementary RL)."""
