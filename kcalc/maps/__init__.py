"""Q and C maps as objects with habits: values, derivatives, fixed points, formulas, assumptions."""
