"""Commands, one module each: flags, the call of a function, and the output."""
