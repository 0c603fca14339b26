"""Work that spans the packages: the demo, `doctor`'s checks and its measurement."""
