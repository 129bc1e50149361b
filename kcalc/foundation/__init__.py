"""What all other rooms stand on.

Errors, checks of plain arguments, files, printing, the letters of formulas.
"""
