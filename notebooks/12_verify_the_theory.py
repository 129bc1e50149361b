# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 12. Verify the theory
#
# kcalc rests on five papers and on the theory of attention in its documentation. It stores their statements as *claims*. A claim has a statement in the form that holds, its place, its hypotheses and a check that yields evidence. If the paper prints another mathematical statement, the claim includes that too. `kcalc verify` runs all
# checks. This notebook shows the verdicts, examines two printed statements that fail, and adds a claim.

# %%
import matplotlib.pyplot as plt
import numpy as np
import sympy as sp
from IPython.display import Markdown
from matplotlib_inline.backend_inline import set_matplotlib_formats

import kcalc as kc
from kcalc import claims
from kcalc.plotting import axis_names

rng = np.random.default_rng(0)
set_matplotlib_formats("svg", metadata={"Date": None})
plt.rc("figure", dpi=110)
plt.rc("axes", titlesize=10.5)
plt.rc("axes.spines", top=False, right=False)
plt.rc("legend", frameon=False)
BLUE, RED, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"

# %% [markdown]
# ## The claims
#
# Every claim has a verdict. "Printed form fails" means that the mathematics of the printed statement is wrong and that a corrected form holds; "holds with caveat" adds a hypothesis that the paper omits; "not decidable here" mostly concerns training runs
# on large data sets.

# %%
COLOURS = {
    claims.Verdict.HOLDS: BLUE,
    claims.Verdict.CAVEAT: "#56B4E9",
    claims.Verdict.CORRECTED: "#E69F00",
    claims.Verdict.REFUTED: RED,
    claims.Verdict.NOT_DECIDABLE: "#CCCCCC",
}
TITLES = {
    "dks": "Deep Kernel Shaping",
    "tat": "Tailored activations",
    "scaling": "Scaling calculus",
    "gradient": "Per-layer gradient",
    "skips": "Skips, normalisation",
    "attention": "Attention (kcalc)",
}
fig, ax = plt.subplots(figsize=(7.6, 2.9), layout="constrained")
left = np.zeros(len(TITLES))
for verdict, colour in COLOURS.items():
    counts = np.array([sum(c.expected is verdict for c in claims.all(paper)) for paper in TITLES])
    if not counts.any():
        continue
    ax.barh(
        list(TITLES.values()), counts, left=left, color=colour, label=f"{verdict}: {counts.sum()}"
    )
    left += counts
ax.invert_yaxis()
failing = sum(
    c.expected in (claims.Verdict.CORRECTED, claims.Verdict.REFUTED) for c in claims.all()
)
ax.set(
    xlabel="claims",
    title=f"{failing} of {len(claims.all())} mathematical statements fail as printed",
)
ax.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.02));

# %% [markdown]
# We read the papers in plain-text copies with damaged passages. Errors in these copies (letters, indices, lost signs, words) are not mathematical errors and do not count above. They are listed as errata, without verdicts, and the claims state the intended text.

# %%
slips = claims.errata()
rows = [f"| {e.place} | {e.printed} | {e.meant} | {e.claim or ''} |" for e in slips[3:9]]
Markdown(
    f"{len(slips)} slips, among them\n\n"
    + "\n".join(["| place | printed | meant | claim |", "|---|---|---|---|", *rows])
)

# %% [markdown]
# For statements that fail, too, we can only say that they are false in these copies: the published papers may be right.
#
# ## Run some of them
#
# These are a few theorem-level claims, with the small budget: the verdict, its margin (by how much the tightest finding holds) and the kinds of evidence.

# %%
chosen = [
    "DKS-thm13a",
    "DKS-prop20",
    "DKS-thm42",
    "TAT-prop1",
    "PLG-thm1-lower",
    "SC-extrinsic",
    "SC-T1-avgpool",
]
report = claims.verify(ids=chosen, processes=1)
for f in report.findings:
    print(f"{f.claim.id:15s} {f.verdict!s:41s} {f.margin:5.2g}  {f.methods}")
assert not report.contradictions

# %% [markdown]
# ## A printed statement that fails: how fast a C map flattens
#
# Proposition 20 of the DKS paper bounds the slope of a C map by its flatness $F(c) = (C(|c|) - C(0))/|c|$. The claim is the form that holds, with the printed one below it:

# %%
def shown(id):
    claim = claims.get(id)
    parts = [f"**{claim.id}** ({claim.place}): {claim.statement}"] + (
        [f"*Printed:* {claim.printed}"] if claim.printed else []
    )
    return Markdown("\n\n".join(parts))


shown("DKS-prop20")

# %% [markdown]
# The smallest counterexample needs no computer: for the identity map $C(c) = c$ we have $F = 1$, so the printed bound is $0$, while $C' = 1$. Random C maps violate it too. A C map (uniform $q$) is a power series $\sum_n b_n c^n$ with $b_n \ge 0$ that
# sum to one, so random ones are easy to draw:

# %%
powers = np.arange(12)


def random_maps(count):
    """Coefficients b_n >= 0 that sum to one, (count, 12)."""
    b = (
        rng.exponential(size=(count, 12))
        * (rng.random((count, 12)) < 0.35)
        * np.exp(-rng.uniform(0, 1.5, (count, 1)) * powers)
    )
    return b[b.sum(axis=1) > 0] / b[b.sum(axis=1) > 0].sum(axis=1, keepdims=True)


b, c = random_maps(3000), 0.6
C0, Cc = b[:, 0], b @ c**powers
slope = b[:, 1:] @ (powers[1:] * c ** powers[:-1])
F = (Cc - C0) / c
b, F, slope = b[F > 1e-12], F[F > 1e-12], slope[F > 1e-12]
printed = F * np.log(F) / (c * np.log(c)) * (1 + c)
corrected = F * (1 + np.log(F) / np.log(c))
broken = slope > printed * (1 + 1e-9)
print(f"printed bound violated by {broken.sum()} of {len(F)} random maps")
print(
    f"the smallest F among these is {F[broken].min():.3f}, and exp(-1/e) = {np.exp(-1 / np.e):.3f}"
)
print(f"corrected bound violated by {(slope > corrected * (1 + 1e-9)).sum()}")
assert F[broken].min() > np.exp(-1 / np.e) and not (slope > corrected * (1 + 1e-9)).any()

order = np.linspace(1e-3, 1, 400)

# %%
fig, ax = plt.subplots(figsize=(6.4, 3.3), layout="constrained")
ax.plot(F[~broken], slope[~broken], ".", ms=3, color=GREY, label="random C maps")
ax.plot(F[broken], slope[broken], ".", ms=5, color=RED, label="those above the printed bound")
ax.plot(order, order * np.log(order) / (c * np.log(c)) * (1 + c), color=RED, label="printed bound")
ax.plot(order, order * (1 + np.log(order) / np.log(c)), color=BLUE, label="corrected bound")
monomials = powers[1:]
ax.plot(
    c ** (monomials - 1.0),
    monomials * c ** (monomials - 1.0),
    "o",
    mfc="none",
    color=BLUE,
    label=r"$\mathcal{C}(c) = c^n$: attained",
)
ax.axvline(np.exp(-1 / np.e), color=GREY, lw=1, ls=":")
ax.set(
    xlabel=f"flatness $F(c)$ at $c$ = {c}",
    ylabel=axis_names.C_SLOPE,
    ylim=(0, 2.4),
    title="The printed slope bound fails for nearly linear maps; the corrected one is attained",
)
ax.legend(fontsize=8, loc="upper left");

# %% [markdown]
# The corrected form is Jensen's inequality for the convex function $y\log y$: with $y_n = c^{n-1}$ one has $F = \sum_{n\ge1} b_n y_n$ and, because the $b_n$ sum to one at most, $\sum b_n y_n\log y_n \ge F\log F$. Now $n = 1 + \log y_n/\log c$ with $\log c < 0$, so
# $C'(c) = \sum n\,b_n y_n \le F\,(1 + \log F/\log c)$.
# The dotted line is $e^{-1/e}$: below it the printed bound is true as well.
#
# ## A second one: a ReLU block with a shortcut
#
# Proposition 1 of the TAT paper says that a leaky ReLU has the C map of a residual ReLU block, for a shortcut weight that depends on the negative slope $a$. Which one?

# %%
shown("TAT-prop1")

# %% [markdown]
# The C map of a ReLU is $R(c) = (\sqrt{1-c^2} + (\pi - \arccos c)\,c)/\pi$, that of a leaky ReLU follows from $\varphi_a(x) = \tfrac{1+a}2 x + \tfrac{1-a}2|x|$, and a residual block mixes: $w^2 c + (1-w^2) R(c)$. In NumPy:

# %%
a, grid = 0.3, np.linspace(-1, 1, 201)
R = (np.sqrt(1 - grid**2) + (np.pi - np.arccos(grid)) * grid) / np.pi
absolute = (
    2 * R - grid
)  # E|u||v| = 4 E relu(u) relu(v) - E uv for unit variances, and E relu(u)^2 = 1/2
leaky = ((1 + a) ** 2 / 4 * grid + (1 - a) ** 2 / 4 * absolute) / ((1 + a**2) / 2)
for label, share in (
    ("printed:   w² = a/(1 + a²)", a / (1 + a**2)),
    ("corrected: w² = 2a/(1 + a²)", 2 * a / (1 + a**2)),
):
    print(
        f"{label}   largest difference of the C maps {np.abs(leaky - (share * grid + (1 - share) * R)).max():.2e}"
    )
t = sp.Symbol("t", real=True)
library = kc.activation(sp.Max(t, 0) + a * sp.Min(t, 0)).c_map(grid)
print(f"the library's leaky ReLU differs from this one by {np.abs(library - leaky).max():.1e}")

# %% [markdown]
# ## Add a claim
#
# A check receives a `bench` (separate random numbers, a budget, ways to decide) and yields evidence. Suppose you believe that the C map of a convex combination of *activations* is the convex combination of their C maps. Here is the claim. Its check looks at
# random pairs and, being able to fail, fails:

# %%
mine = claims.Paper("mine", "My notes")


@mine.claim(
    "MINE-1",
    "p. 1",
    r"$\mathcal C$ of $\tfrac12(\varphi+\psi)$ is $\tfrac12(\mathcal C_\varphi+\mathcal C_\psi)$",
    claims.Verdict.REFUTED,
)
def _(bench):
    c = bench.rng.uniform(-1, 1, 20)
    x = sp.Symbol("x", real=True)
    both = kc.activation((sp.tanh(x) + sp.erf(x)) / 2).c_map(c)
    apart = (kc.activation("tanh").c_map(c) + kc.activation("erf").c_map(c)) / 2
    yield bench.equal(both, apart, "tanh and erf at random c")

# %%
@mine.claim(
    "MINE-2",
    "p. 2",
    r"$\mathcal C$ of an even and an odd function's sum is a mixture: "
    r"$\mathcal Q\,\mathcal C = \mathcal Q_e\,\mathcal C_e + \mathcal Q_o\,\mathcal C_o$",
)
def _(bench):
    x = sp.Symbol("x", real=True)
    pairs = [
        (sp.tanh(x), sp.cos(x)),
        (x, sp.Abs(x)),
        (sp.erf(x), sp.exp(-(x**2))),
        (sp.sin(x), x**2),
    ]
    for odd, even in pairs[: bench.size(3, 4)]:
        c = bench.rng.uniform(-1, 1, 20)
        o, e, s = (kc.activation(f) for f in (odd, even, odd + even))
        mixed = o.q_map(1.0) * o.c_map(c) + e.q_map(1.0) * e.c_map(c)
        yield bench.equal(s.q_map(1.0) * s.c_map(c), mixed, f"{odd} and {even}")

# %%
for claim in mine.claims.values():
    finding = claims.check(claim)
    print(f"{claim.id}: {finding.verdict}")
    for item in finding.evidence:
        print(f"   {item.what}: {'holds' if item.holds else 'fails'}, margin {item.margin:.2g}")
    assert finding.expected

# %% [markdown]
# The second claim is a small theorem: $E[\varphi_e(u)\varphi_o(v)] = 0$, because $(u, v)$ and $(-u, -v)$ have the same law. So a constant added to $\tanh$ mixes its C map with the constant 1, and so does a random bias after it.
#
# ## Checks must be able to fail
#
# A verdict is worth as much as its check. kcalc's tests therefore break its formulas one at a time (a wrong constant, a lost square) and test whether some claim then fails. As an example, we give the claim above a wrong mixture.

# %%
bench_seed = claims.check(mine.claims["MINE-2"], seed=1)
print("another seed: ", bench_seed.verdict)


@mine.claim(
    "MINE-3",
    "p. 2, with a wrong mixture",
    r"$\mathcal C = \tfrac12(\mathcal C_e + \mathcal C_o)$ for every even and odd pair",
)
def _(bench):
    c = bench.rng.uniform(-1, 1, 20)
    x = sp.Symbol("x", real=True)
    e, o, s = (kc.activation(f) for f in (sp.cos(x), sp.tanh(x), sp.cos(x) + sp.tanh(x)))
    yield bench.equal(s.c_map(c), (e.c_map(c) + o.c_map(c)) / 2, "cos and tanh")


spoilt = claims.check(mine.claims["MINE-3"])
print("wrong mixture:", spoilt.verdict, "- as expected by its author:", spoilt.expected)
assert not spoilt.expected

# %% [markdown]
# ## What we saw
#
# - Claims contain their statement, hypotheses, evidence and verdict. `claims.verify()` runs them, `kcalc verify --html page.html` writes the page, `docs/what_holds.md` lists them, and `claims.errata()` lists the errors in the copies.
# - A refutation is small: a linear map, a wrong constant. Statements that hold are checked by the same kind of evidence.
# - To add a claim, use a decorator and a generator.
#
# Next: `13_one_thing`, where four formalisms turn out to be one.
