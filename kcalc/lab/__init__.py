"""Applications of the calculus: audits, transfer, training, regression, reports, sliders."""
