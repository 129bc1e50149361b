"""The result of an audit: tables and findings, as text, HTML, JSON, SARIF and a lock file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from ...foundation.errors import KcalcError
from ...foundation.files import write_whole
from ...foundation.plain_arguments import choice, file_path
from ...foundation.printing import Tabled, html_page, html_table, shown, text_table
from .findings import SEVERITIES, Finding, known_codes
from .laws import Law
from .lock import changes, lock_text
from .sarif import sarif
from .subject import families
from .tables import BlockRow, ParameterRow

ROWS = 14
PLURAL = {"gain": "gains", "bias": "biases", "unused": "unused"}
HEAD = ("parameters", "count", "role", "law", "sigma", "fan_in", "emits", "gradient")
BLOCK_HEAD = ("block", "stream", "predicted", "branch", "cosine", "Var scores", "ln T", "gradient")


@dataclass(frozen=True)
class Audit(Tabled):
    """The effects and the faults of a model's initialisation.

    Attributes
    ----------
    name
        The name of the model's class.
    tier
        "builder" if the run of a builder was recorded, "model" if the laws are estimates.
    findings
        The findings, the worst first.
    parameters
        The table of parameters.
    blocks
        The table of blocks.
    logits
        The root mean square of the logits.
    loss
        The initial cross entropy, averaged over labels.
    uniform
        ln V, the loss of uniform predictions over V classes.
    predicted_logits
        The root mean square of the logits that the kernel calculus predicts, under ``assumptions``.
    laws
        {parameter: the distribution of its initial values}.
    remarks
        Notes on parts of the model that were not examined.

    """

    name: str
    tier: str
    findings: tuple[Finding, ...]
    parameters: tuple[ParameterRow, ...]
    blocks: tuple[BlockRow, ...]
    logits: float | None = None
    loss: float | None = None
    uniform: float | None = None
    predicted_logits: float | None = None
    laws: Mapping[str, Law] = field(default_factory=dict, repr=False)
    remarks: tuple[str, ...] = ()
    assumptions: tuple[Any, ...] = field(default=(), repr=False)

    def found(self, fail_on: str = "error", ignore: tuple[str, ...] = ()) -> tuple[Finding, ...]:
        """Return the findings of at least a given severity.

        Parameters
        ----------
        fail_on
            "error", "warning" or "note".
        ignore
            Codes of findings to leave out.

        Returns
        -------
        tuple[Finding, ...]
            The selected findings; empty if there are none.

        Raises
        ------
        KcalcError
            For an unknown severity or code.

        """
        least = SEVERITIES.index(choice(fail_on, "severity", SEVERITIES))
        ignore = known_codes(ignore, "ignore")
        return tuple(
            f
            for f in self.findings
            if SEVERITIES.index(f.severity) >= least and f.code not in ignore
        )

    def check(self, fail_on: str = "error", ignore: tuple[str, ...] = ()) -> Audit:
        """Return the audit if :meth:`found` returns no findings, and raise an error otherwise.

        For use in tests.

        Parameters
        ----------
        fail_on
            "error", "warning" or "note".
        ignore
            Codes of findings to leave out.

        Returns
        -------
        Audit
            The audit itself, if it passes.

        Raises
        ------
        KcalcError
            If there are findings; the message lists them.

        """
        found = self.found(fail_on, ignore)
        if found:
            lines = "\n".join(f"  {finding}" for finding in found)
            raise KcalcError(f"{self.name}: {_count(len(found), 'finding')}\n{lines}")
        return self

    def changes(self, baseline: str | os.PathLike[str]) -> tuple[Finding, ...]:
        """Return the differences from a lock file as findings with the code LOCK-CHANGED.

        Parameters
        ----------
        baseline
            The path of a file that :meth:`lock` wrote.

        Returns
        -------
        tuple[Finding, ...]
            One finding per difference; empty if nothing changed.

        Raises
        ------
        KcalcError
            If the file is not a lock file.

        """
        return changes(self.laws, {r.name: r.shape for r in self.parameters}, baseline)

    def lock(self, path: str | os.PathLike[str]) -> Path:
        """Write the law and the sigma of every parameter to a file, for later comparison.

        Parameters
        ----------
        path
            The path of the file.

        Returns
        -------
        Path
            The path of the file.

        Raises
        ------
        KcalcError
            If the file cannot be written.

        """
        return write_whole(file_path(path), lock_text(self.name, self.parameters))

    def to_dict(self) -> dict[str, Any]:
        """Return the audit as plain data, in the schema ``kcalc.audit/1``.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "schema": "kcalc.audit/1",
            "name": self.name,
            "tier": self.tier,
            "findings": [finding.to_dict() for finding in self.findings],
            "parameters": [row.to_dict() for row in self.parameters],
            "blocks": [row.to_dict() for row in self.blocks],
            "logits": self.logits,
            "loss": self.loss,
            "uniform": self.uniform,
            "predicted_logits": self.predicted_logits,
            "assumptions": [f"{one.kind}: {one.text}" for one in self.assumptions],
            "remarks": list(self.remarks),
        }

    def to_sarif(self) -> dict[str, Any]:
        """Return the findings as a SARIF 2.1.0 log. Code hosts show them next to the source.

        Returns
        -------
        dict[str, Any]
            The log as plain data, ready for ``json.dump``.

        """
        return sarif(self.findings)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the audit to a file.

        Parameters
        ----------
        path
            A path that ends in .json, .sarif, .html or .txt.

        Returns
        -------
        Path
            The path of the file.

        Raises
        ------
        KcalcError
            If the path has another extension.

        """
        ending = file_path(path).suffix
        if ending not in DOCUMENTS:
            raise KcalcError(
                f"{path}: an audit can be saved only as {', '.join(DOCUMENTS)}; use one of "
                "these suffixes"
            )
        return write_whole(path, DOCUMENTS[ending](self))

    def _frame(self) -> list[dict[str, Any]]:
        return [row.to_dict() for row in self.parameters]

    def __repr__(self) -> str:
        return f"Audit({self.name}, {len(self.parameters)} parameters, {_tally(self.findings)})"

    def __str__(self) -> str:
        lines = [self._title()]
        lines += [str(finding) for finding in self.findings]
        lines += ["", text_table(self._parameter_lines(), ROWS)]
        if self.blocks:
            lines += ["", text_table(self._block_lines(), 6)]
        lines += self.remarks
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        found = "".join(
            f"<li><b>{escape(f.severity)} {escape(f.code)}</b> {escape(f.message)}"
            f"{' <code>' + escape(f.place) + '</code>' if f.place else ''}<br>{escape(f.fix)}</li>"
            for f in self.findings
        )
        blocks = html_table(self._block_lines(), "measured") if self.blocks else ""
        remarks = "".join(f"<p>{escape(remark)}</p>" for remark in self.remarks)
        return (
            f"<p><b>{escape(self._title())}</b></p><ul>{found}</ul>"
            f"{html_table(self._parameter_lines(), 'families of parameters')}{blocks}{remarks}"
        )

    def _title(self) -> str:
        text = f"{self.name} ({self.tier}): {_count(len(self.parameters), 'parameter')}, "
        text += _tally(self.findings)
        if self.loss is not None and self.logits is not None:
            text += f"; rms of logits {self.logits:.3g}, loss {self.loss:.4g}, ln V"
            text += f" {self.uniform:.4g}"
        if self.predicted_logits is not None:
            text += f"; predicted rms of logits {self.predicted_logits:.3g}"
        return text

    def _parameter_lines(self) -> list[tuple[str, ...]]:
        """Return one line per family of similar weights. Gains and biases take two lines."""
        rows = {row.name: row for row in self.parameters}
        small = {n for n, r in rows.items() if r.role in ("gain", "bias", "unused")}
        lines: list[tuple[str, ...]] = [HEAD]
        for form, names in families(n for n in rows if n not in small).items():
            group = [rows[name] for name in names]
            lines.append(
                (
                    form,
                    str(len(names)),
                    _each([row.role for row in group]),
                    _each([row.law for row in group]),
                    _span([row.sigma for row in group]),
                    _span([row.fan_in for row in group]),
                    _span([row.emits for row in group]),
                    _span([row.gradient for row in group]),
                )
            )
        for role in PLURAL:
            group = [rows[name] for name in small if rows[name].role == role]
            if group:
                means = _span([row.mean for row in group])
                sigma = _span([row.sigma for row in group])
                lines.append(
                    (f"{PLURAL[role]}, mean {means}", str(len(group)), role, "", sigma, "", "", "")
                )
        return lines

    def _block_lines(self) -> list[tuple[str, ...]]:
        lines: list[tuple[str, ...]] = [BLOCK_HEAD]
        for b in self.blocks:
            numbers = (b.branch, b.token_cosine, b.score_variance, b.log_keys, b.gradient)
            lines.append((b.name, *(shown(n, 3) for n in (b.stream, b.predicted, *numbers))))
        if all(b.predicted is None for b in self.blocks):
            return [(*line[:2], *line[3:]) for line in lines]
        return lines


DOCUMENTS: dict[str, Callable[[Audit], str]] = {
    ".json": lambda audit: json.dumps(audit.to_dict(), indent=1, allow_nan=False) + "\n",
    ".sarif": lambda audit: json.dumps(audit.to_sarif(), indent=1) + "\n",
    ".html": lambda audit: html_page(f"Audit of {audit.name}", audit._repr_html_()),
    ".txt": lambda audit: f"{audit}\n",
}
"""The content of an audit's files, by file extension."""


def _each(texts: list[str]) -> str:
    """Return every different text once."""
    return " / ".join(dict.fromkeys(texts))


def _span(numbers: Sequence[float | None]) -> str:
    """Return one number if all numbers agree, otherwise the smallest and the largest.

    Integers agree if they are equal, and other numbers if they differ by at most 1 %.
    """
    known = [n for n in numbers if n is not None]
    if not known:
        return "-"
    low, high = min(known), max(known)
    tolerance = 0 if isinstance(high, int) else 0.01
    if high - low <= tolerance * max(abs(low), abs(high)):
        return shown(high, 3)
    return f"{shown(low, 2)} ... {shown(high, 2)}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


def _tally(findings: tuple[Finding, ...]) -> str:
    counts = {s: sum(f.severity == s for f in findings) for s in reversed(SEVERITIES)}
    texts = [_count(n, severity) for severity, n in counts.items() if n]
    return ", ".join(texts) or "no findings"
