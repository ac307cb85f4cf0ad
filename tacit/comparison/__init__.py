"""Methods × worlds × seeds from one file: docs/guides/compare_methods.md, docs/reference/comparison.md."""
