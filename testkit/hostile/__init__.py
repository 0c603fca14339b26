"""Hostile input made from the declarations themselves, so that a new option or file needs no line.

Options come from each command's flags and from the settings, files from what lies in the folders
that a command is given, outputs from what a command writes. Each case says how it may end; `judge`
runs it as a real process and says what was wrong. tests/test_hostile.py tries a sample;
`make bench-bad-input` tries all.
"""
