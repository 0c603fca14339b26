"""What a person types and reads: the list of commands, flags, help. Nothing below imports it."""
