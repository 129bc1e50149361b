"""Pages from templates: whatever is put in is escaped."""

from __future__ import annotations

from kcalc.foundation.templates import template


def test_what_is_put_in_is_escaped() -> None:
    page = template('{% macro p(x) %}<p title="{{ x }}">{{ x }}</p>{% endmacro %}{{ p(given) }}')
    safe = "&lt;b&gt;&amp;&#34;\ufffd\ufffd{{ 1 }}"
    assert page.render(given='<b>&"\x00\ud800{{ 1 }}') == f'<p title="{safe}">{safe}</p>'
