"""Several methods × worlds × seeds from one file, under one budget, measured alike: docs/guides/compare_methods.md. The layout
of comparison.json is in docs/reference/comparison.md."""
