"""Gaussian expectations: by quadrature in double precision, and certified by balls."""
