"""Uses of kernels: regression and Gaussian processes, training curves, scikit-learn."""

from .dynamics import TrainingCurve, training_curve
from .regression import GaussianProcess, KernelRegression, gaussian_process, kernel_regression
from .sklearn_kernel import sklearn_kernel

__all__ = [
    "GaussianProcess",
    "KernelRegression",
    "TrainingCurve",
    "gaussian_process",
    "kernel_regression",
    "sklearn_kernel",
    "training_curve",
]
