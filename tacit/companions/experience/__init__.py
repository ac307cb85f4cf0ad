"""Complementary RL's experience: an extractor writes entries about episodes, a bank stores them, and retrieval finds them."""
