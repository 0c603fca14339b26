"""Damaged inputs and folders of other tools for every command, generated: a new file needs no line.

Files are those in the folders that a command is given. Each case states how it may end; `judge`
runs it as a real process and reports what was wrong. tests/test_hostile.py tries a sample of the
day; `make bench-bad-input` tries all.
"""
