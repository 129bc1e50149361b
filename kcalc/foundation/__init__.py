"""What all other rooms stand on: errors, checks of plain arguments, files, printing, the letters of formulas."""
