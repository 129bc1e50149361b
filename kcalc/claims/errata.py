"""Slips in our copies of the papers: wrong letters, indices and words, or lost signs.

They have no verdict and are not counted as claims.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .claim import Paper
from .registry import wanted_papers


@dataclass(frozen=True)
class Erratum:
    """One slip in the copy of a paper.

    Attributes
    ----------
    paper
        The short name of the paper.
    place
        The section, equation or table.
    printed
        The text of the copy, with LaTeX formulas.
    meant
        The correct text.
    claim
        The id of the claim that states and checks the correct form, or None.

    """

    paper: str
    place: str
    printed: str
    meant: str
    claim: str | None = None


def errata(paper: str | Paper | Iterable[str | Paper] | None = None) -> tuple[Erratum, ...]:
    """Return the slips in the copies, in the order of the papers.

    Parameters
    ----------
    paper
        A paper ("dks", "tat", "scaling", "gradient", "skips") or several papers. Defaults to all.

    Returns
    -------
    tuple[Erratum, ...]
        The slips.

    Raises
    ------
    KcalcError
        If a paper is unknown or the list is empty.

    """
    asked = wanted_papers(paper)
    wanted = {one.name if isinstance(one, Paper) else one for one in asked}
    return tuple(row for row in ERRATA if row.paper in wanted)


_DKS = (
    ("throughout", "MNIST, with images of size $224\\times224$", "ImageNet"),
    ("Secs. 27 and 28", "F1-score", "accuracy"),
    ("Sec. 5.3", r"$\|x-y'\|$", r"$\|x-y\|$", "DKS-dist"),
    ("Sec. 5.7, eq. 4", "the denominator $k_1+k_1$", "$k_1+k_2$", "DKS-eq4"),
    ("Sec. 11.4", "random forest architectures", "convolutional architectures"),
    (
        "Sec. 12.1",
        r"$\mathrm{RELU}(\lambda u)=\mathrm{RELU}\,\phi(u)$",
        r"$\lambda\,\mathrm{RELU}(u)$",
        "DKS-hom",
    ),
    (
        "Secs. 12.2 and 12.3",
        "RELU networks, whose C maps tend to 0; RELU and tanh networks",
        "erf networks in both places",
        "DKS-erfdeg",
    ),
    (
        "Sec. 13.4",
        r"$\phi$ is affine if and only if $\mathrm{nl}(\phi)=0$",
        r"$\mathrm{na}(\phi)=0$",
        "DKS-nadef",
    ),
    ("Sec. 15.2", "the variance $1/m$", "$2/m$, as in Sec. 4.2", "DKS-gausspert"),
    ("Sec. 17.2", r"$\frac12(1+\psi^D)<\psi^D$ for $\psi\ge1$", r"for $\psi>1$", "DKS-172ex1"),
    (
        "Sec. 18.6",
        r"the variables $\hat\gamma,\hat\beta,\hat\delta$",
        r"$\tilde\gamma,\tilde\beta,\tilde\delta$",
        "DKS-186",
    ),
    ("Sec. 18.7, table, swish", r"$\alpha=0.12945$", r"$\alpha=0.12949$", "DKS-tab-swish"),
    ("Sec. 20.1.2", r"$\frac{1}{n}\sum_ic_i$", r"$\frac{1}{\ell}\sum_ic_i$", "DKS-jens"),
    ("Sec. 22.2", "order 105", "order $10^5$", "DKS-222"),
    ("Sec. 22.3", r"$m(\psi)=\psi^D$", r"$\mu(\psi)=\psi^D$", "DKS-223"),
    (
        "Sec. 23.5",
        "the case $w=0$ of eq. 20",
        "the case $w=1$, where $w$ is the residual weight",
        "DKS-235",
    ),
    ("Sec. 24.1", "standard precision", "squared error"),
    ("Sec. 24.4", "$q_{D+1}$", "$q_D$", "DKS-ntkchain"),
    ("Sec. 24.5.4", "$C'(1)=1$", "$C'(1)>1$", "DKS-xiao"),
    ("Sec. 26.3", "Equation 22.2", "eq. 11; 22.2 is a section", "DKS-selu"),
    (
        "Sec. 26.4",
        "convergence to 1 for $C'(1)>1$, to some $c_0<1$ for $C'(1)<1$",
        "with the inequalities exchanged",
        "DKS-264",
    ),
    ("App. A", "an auxiliary matrix called both $S$ and $A$", "a single name", "DKS-eq24"),
    (
        "App. B",
        r"$-\sqrt{q_2}\,c\,E[\phi\,\phi''(u)]$",
        r"$+\sqrt{q_2}\,c\,E[\phi\,\phi''(u)]$",
        "DKS-appB",
    ),
    ("App. C.1, Lemma 28", r"$\alpha\ne0$", r"$\alpha\ne1$", "DKS-lem28"),
    ("App. C.2, proof of Corollary 37", "strict concavity", "strict convexity", "DKS-cor37"),
    ("App. D.1", "the sum from $i=1$", "from $i=0$", "DKS-D1"),
    ("App. D.2, eq. 28", "the sums from $i=1$", "from $i=0$", "DKS-eq28"),
    (
        "App. D.3",
        r"$\langle\varphi,h_1\rangle^2/\|\varphi\|^2$",
        r"$\langle\varphi',h_0\rangle^2/\|\varphi'\|^2$",
        "DKS-D3",
    ),
    (
        "App. E, for the variance",
        r"$E[f(Z)^\top f(Z')]=\mathrm{tr}(Z^\top Z')$",
        r"$\mathrm{tr}(Z^\top Z')/\ell$",
        "DKS-appEm",
    ),
    (
        "App. E",
        r"the entries of $Z^\top Z'$ are at most $q_{\max}$",
        r"at most $k\,q_{\max}$",
        "DKS-appEq",
    ),
    ("App. H.2, last case", "$C'(1)<1$", "$C'(1)=1$", "DKS-H2a"),
    (
        "App. J",
        "transition blocks read $q_1+1$ to $q_4+1$",
        "they read $1$, $q_1+1$, $q_2+1$ and $q_3+1$",
        "DKS-Jtr",
    ),
    ("App. J", "the image $[0.94,1]$ for $D=152$", "$[0.95,1]$ (0.9469)", "DKS-J152"),
)
_TAT = (
    ("Sec. 5.4", r"$(\sigma_w,\sigma_b)=(1.302,0.02)$", "$(1.302,0.2)$", "TAT-eoctanh"),
    ("App. B.2", r"$r_2(x)=\mathcal C''(1)\,x$", r"$r_2(x)=x+\mathcal C''(1)$", "TAT-r2"),
    ("App. B.3", r"$\mathcal C(c)$ decreases in $c$", r"it decreases in $\alpha$", "TAT-b3"),
    ("App. B.4, rules for $r_2$", "the input maps to $x$", "it maps to 0", "TAT-b4b"),
    ("App. B.5, last display", "$3(1-w^2)$", "3, for the branch only", "TAT-b5b"),
    (
        "App. C, Theorem 1, eq. 10",
        r"$\min\{4\,\mathcal C_f'(0),1\}$",
        r"$\min\{4\,\mathcal C_f(0),1\}$, as in Sec. 4.1",
        "TAT-eq10",
    ),
    (
        "App. C, eq. 26",
        r"$\frac{2\alpha}{1+\alpha^2}+\frac{1-\alpha^2}{1+\alpha^2}$",
        r"$\frac{2\alpha}{1+\alpha^2}\,c+\frac{(1-\alpha)^2}{1+\alpha^2}$",
        "TAT-eq26",
    ),
    (
        "App. C, proof of Proposition 3",
        r"$1-(3/\sqrt{2t+3})^2$",
        r"$1-(3/(\sqrt2\,t+3))^2$",
        "TAT-eq31sol",
    ),
    (
        "App. C, after eq. 33",
        r"$0\le\mathcal C_f(c)\le1$",
        r"$0\le\mathcal C_f'(c)\le1$",
        "TAT-thm1txt",
    ),
    ("App. D", r"an effect only when $k\le m$", "only when $k<m$", "TAT-suo"),
    ("App. E.1", r"$\|x_2^0\|=d_0$", r"$\|x_2^0\|^2=d_0$", "TAT-e1"),
    (
        "App. E.1",
        r"$x_1^\top x_2/(\|x_1\|\|x_2\|)$",
        r"$x_1^{l\top}x_2^l/(\|x_1^l\|\|x_2^l\|)$",
        "TAT-e1",
    ),
    (
        "Table 7: 50 layers, SGD, $w=0$",
        "71.1",
        "71.0, as in Tables 2, 4, 5, 6 and 8, or 71.1 in all of them",
    ),
)
_SCALING = (
    (
        "Sec. 4, display after eq. 2",
        r"$\rho_l^2$",
        r"$\rho_{l+1}^2$, as in App. C",
        "SC-extrinsic",
    ),
    (
        "Sec. 7, compared with Sec. 10 and App. H",
        "variances from .01 to .1 are recommended, but standard deviations of .05 are used",
        "one of the two words is wrong: a standard deviation of .05 is a variance of .0025",
    ),
    (
        "Sec. 8, Def. 5, eq. 7",
        r"$\rho^2E[\Delta x_l^2]/E[x_l^2]$",
        r"$\rho_{l+1}^2E[\Delta x_{l+1}^2]/E[x_{l+1}^2]$",
        "SC-eq7",
    ),
    ("Sec. 9", "Table 1, on the consistency of geometric initialisation", "Table 2"),
    (
        "Sec. 11, two sentences",
        r"the residual branch has $\alpha^2$, its convolutions $\alpha$",
        "these are the factors of the shortcut",
        "SC-11-shortcut",
    ),
    (
        "Sec. 11, last display of the general case",
        r"$(\beta^2/c^2)\varsigma_R$",
        r"$(\beta^2/c^2)\varsigma$",
        "SC-11-last",
    ),
    (
        "Sec. 11.1, downsampling shortcut",
        r"$c=\alpha/4$",
        r"$c=\alpha$, as the prose says",
        "SC-11.1-y2",
    ),
    (
        "Sec. 11.1, end of the block",
        r"$x_9=\frac{v}{\sqrt\beta}x_8$, and $x_9=\sqrt{m/(\beta n)}\,x_8$",
        "two tensors; the formula of the convolution between them, from w to m channels, is "
        "missing",
    ),
    ("App. B.7, text", "multiplied by $s$", "by $1+s^2$, as in the display", "SC-B7"),
    ("App. D, second display", r"$\rho_l^2$", r"$\rho_{l+1}^2$", "SC-appD-dW"),
    ("App. G, before eq. 15", "$u=y_l/E[y_l^2]$", r"$u=y_l/\sqrt{E[y_l^2]}$"),
)
_GRADIENT = (
    ("Sec. 3", r"$\Delta=2(c_4-3c_2^2)/n_{l-1}$", r"$\Delta=2(c_4-3c_2^2)/c_2^2$", "PLG-eq72"),
    ("Secs. 3 and 4", r"$\|y^0\|=1$, and $y^0_j=1$ for all j", "$y^0_j=n_0^{-1/2}$ for all j"),
    ("Sec. 5, Lemma 4", r"$W_2^T\phi(y^{l-1})$", r"$W_2^T\phi(-y^{l-1})$", "PLG-lem4"),
    (
        "Sec. 7, Proposition 1, eq. 26",
        "$(c_m)^l$ for even m",
        "$(c_m)^l/2$, as in eq. 31",
        "PLG-prop1",
    ),
    ("Sec. 7.3, eq. 76", "a 3 or a 5, illegible", "$1+5/n_l$", "PLG-eq76"),
    ("Sec. 7.4, eq. 77", "the product over $l=k$ to $L$", r"over all $l\ne k$", "PLG-eq77"),
    ("Sec. 7.4, eq. 95", "$(1+5/n)^m$", "$(1+5/n)^{m-1}$", "PLG-eq95"),
)
_SKIPS = (
    (
        "Sec. 5, idea of proof",
        r"$\|\nabla\ell_t\|^2\ge\mu_t\,\ell_t$",
        r"$\mu_t\,(\ell_t-\gamma^*)$, as in Theorem 2.4",
        "SKIP-thm2.4",
    ),
    (
        "Sec. 5, idea of proof, and App. B, eq. 37",
        r"$\alpha=\eta(1-2\beta^{-1}\eta)$",
        r"$\alpha=\eta(1-\beta\eta/2)$",
        "SKIP-eq37",
    ),
    (
        "Sec. 5, idea of proof, and App. B, eq. 37",
        "the product to $i=t$",
        "to $i=t-1$",
        "SKIP-eq37-end",
    ),
    (
        "Example A.1, after eq. 21",
        r"$DP(w)\in\mathbb R^{d_0N\times p}$",
        r"$\mathbb R^{d_1d_0\times p}$",
        "SKIP-eq21",
    ),
    ("App. B, Lemma B.3, eq. 33", r"the exponent $-3/2$", "$-5/2$", "SKIP-eq33"),
)
_ROWS = {"dks": _DKS, "tat": _TAT, "scaling": _SCALING, "gradient": _GRADIENT, "skips": _SKIPS}
ERRATA: tuple[Erratum, ...] = tuple(
    Erratum(paper, *row) for paper, rows in _ROWS.items() for row in rows
)
