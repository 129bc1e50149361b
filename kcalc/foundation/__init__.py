"""The foundation of all other rooms.

It contains errors, checks of plain arguments, files, printing, and the symbols of formulas.
"""
