# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file that needs nothing else: a table of implementations and checks, then every problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_MARKS = {"failed": "✗", "passed": "✓", "unavailable": "?", "not applicable": "-"}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222; background: #fff }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .25em .7em; border: 1px solid #ccc; text-align: left }
td.n { text-align: right } .passed { color: #1a7f37 } .failed { color: #c1121f; font-weight: 600 }
.unavailable { color: #9a6700 } .not-applicable { color: #777 } pre { background: #f5f5f5; padding: 1em; overflow: auto }
summary { cursor: pointer } td small { color: #666 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #161616 } pre { background: #222 }
  th, td { border-color: #444 } .passed { color: #4ac26b } .failed { color: #ff7b72 } .unavailable { color: #d4a72c } }
"""


def render(content: Mapping[str, Any]) -> str:
    """The page of one report (``report.contents``)."""
    checks = content["checks"]
    failed = [check for check in checks if check["status"] == "failed"]
    vendors = ", ".join(f"{name} ({source})" for name, source in content["vendors"].items())
    title = f"Conformance of {', '.join(content['vendors'])}"
    counts = ", ".join(
        f'<span class="{_css(name)}">{number} {name}</span>' for name, number in content["counts"].items()
    )
    facts = {
        "date": content["date"],
        "vendor": vendors,
        "device": ", ".join(f"{kind}: {name}" for kind, name in content["devices"].items()) or "-",
        "versions": ", ".join(f"{name} {number}" for name, number in content["versions"].items()),
        "seed of the inputs": content["seed"],
        "command": content["command"],
    }
    rows = "".join(f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in facts.items())
    body = [
        f"<h1>{escape(title)}</h1><p>{counts}</p><table>{rows}</table>",
        "<h2>Implementations</h2>",
        *(_matrix(vendor, checks) for vendor in content["vendors"]),
    ]
    if failed:
        body.append("<h2>Problems</h2>")
        body += [f"<h3>{escape(check['name'])}</h3><pre>{escape(check.get('message', ''))}</pre>" for check in failed]
    body += ["<h2>Every check</h2>", _list(checks)]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def _matrix(vendor: str, checks: Sequence[Mapping[str, Any]]) -> str:
    """Implementations down, checks across; a cell counts the variants."""
    own = [check for check in checks if check["vendor"] == vendor]
    whole = [check for check in own if not check["implementation"]]
    names = list(dict.fromkeys(check["check"] for check in own if check["implementation"]))
    implementations = list(dict.fromkeys((c["operator"], c["implementation"]) for c in own if c["implementation"]))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = [f"<tr><th>operator</th><th>implementation</th>{head}</tr>"]
    for operator, implementation in implementations:
        cells = []
        for name in names:
            found = [
                check["status"]
                for check in own
                if (check["operator"], check["implementation"], check["check"]) == (operator, implementation, name)
            ]
            worst = next((status for status in _MARKS if status in found), "not applicable")
            cells.append(f'<td class="{_css(worst)}">{_MARKS[worst]} {found.count(worst)}/{len(found)}</td>')
        lines.append(f"<tr><td>{escape(operator)}</td><td>{escape(implementation)}</td>{''.join(cells)}</tr>")
    notes = "".join(
        f'<p class="{_css(check["status"])}">{escape(vendor)}, {escape(check["check"])}: {check["status"]}</p>'
        for check in whole
    )
    return f"{notes}<table>{''.join(lines)}</table>"


def _list(checks: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for check in checks:
        figures = dict(check.get("figures") or {})
        note = check.get("unavailable") or check.get("not_applicable") or check.get("problem") or ""
        note = note or ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in figures.items())
        lines.append(
            f"<tr><td>{escape(check['name'])}<br><small>{escape(check['meaning'])}</small></td>"
            f'<td class="{_css(check["status"])}">{check["status"]}</td>'
            f'<td class="n">{1000 * check["seconds"]:.0f} ms</td><td>{escape(str(note))}</td></tr>'
        )
    head = "<tr><th>check</th><th>outcome</th><th>time</th><th>figures or reason</th></tr>"
    return f"<details><summary>{len(checks)} checks</summary><table>{head}{''.join(lines)}</table></details>"


def _css(status: str) -> str:
    return status.replace(" ", "-")
