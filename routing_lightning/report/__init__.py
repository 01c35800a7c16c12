"""What is made from finished or running runs: figures (``plot``) and a page (``report``)."""

from routing_lightning.report.commands import COMMANDS, run_command
from routing_lightning.report.draw import draw_run
from routing_lightning.report.page import write_report
from routing_lightning.report.runs import Run, find_runs, read_run

__all__ = ["COMMANDS", "Run", "draw_run", "find_runs", "read_run", "run_command", "write_report"]
