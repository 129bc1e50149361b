"""What is done with the calculus: audits, transfer, training, regression, reports, sliders."""
