"""Axis labels for each quantity, shared by the plots in the library and in notebooks.

Each label is a symbol in mathtext, or a noun with a unit.
"""

X, PHI = "$x$", r"$\phi(x)$"
C, C_MAP, C_SLOPE = "$c$", r"$\mathcal{C}(c)$", r"$\mathcal{C}'(c)$"
RHO, TOKEN_MAP = r"$\rho$", r"$\mathcal{R}(\rho)$"
GAP_MAP, C_AT_ZERO = r"$1 - \mathcal{C}(c)$", r"$\mathcal{C}(0)$"
Q, Q_MAP = "$q$", r"$\mathcal{Q}(q)$"
SIGMA_W, SIGMA_B = r"$\sigma_w$", r"$\sigma_b$"
PSI, MU = r"$\psi$", r"$\mu(\psi)$"

KERNEL, NTK = "kernel", r"$\Theta(c)$"
NTK_SHARE, LAYER_SHARE = r"$\Theta(c)\,/\,\Theta(1)$", r"$\Theta_i(c)\,/\,\Theta_i(1)$"
EIGENVALUE_SHARE, RANK = r"$\lambda_i\,/\,\lambda_1$", "rank"
GRADIENT = r"$\mathrm{E}\,\|\partial\,\mathrm{out}\,/\,\partial\,\mathrm{node}\|^2$"

LOG_Q_VARIANCE = r"$\mathrm{Var}\,\log q$"
Q_VARIANCE = r"$\mathrm{Var}\,q\,/\,q^2$"
C_VARIANCE = r"$\mathrm{Var}\,c$"
LENGTH_VARIANCE, JACOBIAN_VARIANCE = r"$\mathrm{Var}\,|y_L|^2$", r"$\mathrm{Var}\,|J|^2$"
RELATIVE_VARIANCE = r"$\mathrm{Var}\,s\,/\,(\mathrm{E}\,s)^2$"
WEIGHT_SCALING = r"$s_W\,/\,$geometric mean of $s_W$"

DEPTH = "depth (layers)"
BLOCKS = "depth (blocks)"
NONLINEAR_DEPTH = "depth (nonlinear layers)"
RELATIVE_DEPTH = "layer / depth"
NODE, WEIGHT, AFFINE = (
    f"{what}, from the input to the output" for what in ("node", "weight", "Affine layer")
)
WIDTH, TOKEN = "width", "token"
SINGULAR_VALUE = "singular value"
LOG_SINGULAR_VALUE = r"$\log_{10}$ of the singular values of $J$"
DENSITY = "density"
STEPS = "steps"
TIME = "training time $t$ (steps, or steps times learning rate)"
LOSS = "loss"
CORRECT = "correct on test examples, %"
