"""Code repair: find and mend a defect in a Python package, with a shell, an editor and its tests."""
