"""What is made from finished or running runs: figures (``plot``) and a page (``report``)."""

from routing_lightning.report.draw import draw_run
from routing_lightning.report.page import write_report
from routing_lightning.report.runs import Run, find_runs, read_run

__all__ = ["Run", "draw_run", "find_runs", "read_run", "write_report"]
