"""Applications of kernels: regression and Gaussian processes, training curves, scikit-learn."""

from .dynamics import TrainingCurve, training_curve
from .kept import kept_kernel
from .regression import GaussianProcess, KernelRegression, gaussian_process, kernel_regression
from .sklearn_kernel import sklearn_kernel

__all__ = [
    "GaussianProcess",
    "KernelRegression",
    "TrainingCurve",
    "gaussian_process",
    "kept_kernel",
    "kernel_regression",
    "sklearn_kernel",
    "training_curve",
]
