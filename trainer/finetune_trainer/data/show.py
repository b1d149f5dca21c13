"""A report and rows for people: learned text in colour on a terminal, in brackets elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from finetune_trainer.data.preview import Preview
from finetune_trainer.data.report import Report

LONGEST = 1500
"""Characters of a stretch that are shown."""
_BAR = 40


class Shown:
    """Writes to a console, standard output unless given."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._legend = False

    def row(self, preview: Preview) -> None:
        """Show one row."""
        coloured = self._console.is_terminal and self._console.color_system is not None
        if not self._legend:
            self._legend = True
            how = Text("green", "bold green") if coloured else Text("⟦brackets⟧")
            self._console.print(Text.assemble("What is trained stands in ", how, "."))
        cut = ", truncated" if preview.truncated else ""
        self._console.print(
            Text(f"\n── {preview.file}, row {preview.row} ({preview.tokens} tokens{cut})", style="bold")
        )
        for number, example in enumerate(preview.examples):
            if number:
                self._console.print(Text("· and, as served for a later reply:", style="dim"))
            line = Text()
            open_ = False
            for segment in example:
                if not coloured and segment.learned != open_:
                    line.append("⟦" if segment.learned else "⟧")
                    open_ = segment.learned
                style = "green" if segment.learned else ""
                line.append(_clipped(segment.text), f"{style} {'dim' if segment.special else 'bold'}".strip())
            if open_ and not coloured:
                line.append("⟧")
            self._console.print(line)

    def report(self, report: Report) -> None:
        """Show the verdict."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold")
        table.add_column()
        table.add_row(
            "Files", "\n".join(f"{file.name} ({file.format}, {file.rows} rows)" for file in report.files)
        )
        table.add_row(
            "Rows",
            f"{report.rows:,} kept, {report.skipped:,} skipped, {report.dropped:,} dropped, "
            f"{report.truncated:,} truncated, {report.duplicates:,} duplicates",
        )
        table.add_row("Splits", ", ".join(f"{name} {split.rows:,}" for name, split in report.splits.items()))
        table.add_row(
            "Tokens",
            f"{report.tokens:,} in {report.examples:,} examples, {report.trained_share:.1%} trained",
        )
        lengths = report.lengths
        table.add_row(
            "Lengths",
            f"{lengths.shortest} to {lengths.longest} tokens, median {lengths.median}, mean {lengths.mean}, "
            f"90 % up to {lengths.p90}, 99 % up to {lengths.p99}",
        )
        table.add_row("", _histogram(lengths.histogram))
        scripts = ", ".join(f"{name} {rows:,}" for name, rows in report.scripts.items())
        table.add_row("Scripts", scripts or "none")
        table.add_row("Template", f"{report.template}; the first row ends with {report.end_of_turn!r}")
        self._console.print()
        self._console.print(table)
        for warning in report.warnings:
            self._console.print(Text(f"! {warning.message}", style="yellow"))
            self._console.print(Text(f"  → {warning.hint}"))


def _histogram(bins: list[tuple[int, int]]) -> str:
    most = max((count for _, count in bins), default=0)
    return "\n".join(
        f"≤ {edge:>6,} {'█' * round(_BAR * count / most)}{' ' if count else ''}{count:,}"
        for edge, count in bins
    )


def _clipped(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]} … ({len(text) - LONGEST:,} characters) … {text[-half:]}"
