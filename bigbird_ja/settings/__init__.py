"""Every option of a run, declared once, and how it gets its value; imports no other package but
`process` and `storage`."""
