"""Kernel matrices of data: tables of functions of one angle, engines that fill matrices, spectra."""
