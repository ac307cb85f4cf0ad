"""Complementary RL's experience: an extractor writes entries about episodes, a bank keeps them, retrieval finds them."""
