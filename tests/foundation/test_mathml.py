"""MathML of formulas."""

from __future__ import annotations

import re

from kcalc.foundation.mathml import mathml


def test_long_formulas_break_between_terms_and_primes_are_seen() -> None:
    text = mathml(
        r"\max_{c\in[-1,1]}|C_f(c)-c| \le \bigl(2\,(1-C_f'(0))\bigr)^2 + \tfrac12\,(C_f'(1)-1)"
    )
    # before the relation and the plus, not within strokes or brackets
    assert text.count("<wbr>") == 2
    assert text.count("<math") == text.count("</math>") == 3
    assert re.search(r"<msub><mrow><mi>C</mi><mi[^>]*>\u2032</mi></mrow><mi>f</mi></msub>", text)
    twice = mathml(r"2\,C_f''(1) + C_{f}''")
    assert len(re.findall(r"<mi[^>]*>\u2033</mi></mrow>", twice)) == 2 and "\u2032" not in twice
    assert "<mo>\u223c</mo>" in mathml(r"u \sim N(0, 1)") and "~" not in mathml(r"u \sim v")
    assert "<wbr>" not in mathml("a = b + c")
    assert mathml(r"\frac{") == r"<code>\frac{</code>" or "<math" in mathml(r"\frac{")


def test_formulas_set_names_of_functions_apart() -> None:
    """As LaTeX does: 2 ln T, sqrt(x) arcsin(x), and no spaces in a/b and in front of Cov."""
    space = '<mspace width="0.167em" />'
    assert f"<mn>2</mn>{space}<mi>ln</mi>{space}<mi>T</mi>" in mathml(r"2\ln T")
    assert f"</msqrt>{space}<mi>arcsin</mi><mrow>" in mathml(r"\sqrt{x}\arcsin{\left(x\right)}")
    assert f"</mrow>{space}<mi>sin</mi>{space}<mi>y" in mathml(r"\left(x\right)\sin y")
    assert "<mrow><mi>Cov</mi><mo" in mathml(r"\operatorname{Cov}(s)")
    assert '<mo lspace="0" rspace="0">/</mo>' in mathml("a/b")
    assert mathml(r"\mathbb E x") == mathml(r"\mathbb{E} x")
    assert "\U0001d53c" in mathml(r"\mathbb E x")
