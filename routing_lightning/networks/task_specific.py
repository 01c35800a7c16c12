"""Static sharing: layers that all tasks share, then layers of each task's own (paper, section 4)."""

from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.nn.blocks import LinearBlocks
from routing_lightning.nn.layers import layer_sizes


class TaskSpecific(nn.Module):
    """Fully connected layers, of which the last ones exist once per task (paper, section 4).

    ``own_layers=1`` is the paper's task specific-1-fc, ``own_layers=depth`` its task specific-all-fc, and
    ``own_layers=0`` the control without anything task-specific: all tasks share one network and one output layer of
    C classes, and the task is not used.

    Only the layers of tasks in the batch are run or get a gradient: the cost of a step does not grow with T.

    Args:
        in_features: size of the feature vector, at least 1.
        num_tasks: T, number of tasks, at least 1.
        num_classes: C, size of the output, at least 1.
        hidden: units of each hidden layer, at least 1 (paper: 128).
        depth: D, number of layers, at least 1 (paper: 3).
        own_layers: how many of the last layers exist once per task, in [0, D]; None: all.

    Raises:
        UsageError: if a value is out of its range.
    """

    def __init__(
        self,
        in_features: int,
        num_tasks: int,
        num_classes: int,
        hidden: int = 128,
        depth: int = 3,
        own_layers: int | None = None,
    ) -> None:
        super().__init__()
        sizes = layer_sizes(in_features, num_tasks, num_classes, hidden, depth)
        own = depth if own_layers is None else own_layers
        if not 0 <= own <= depth:
            raise UsageError(f"own_layers is {own} but the network has {depth} layers; give 0 to {depth}.")
        self.shared = nn.Sequential()
        self.own = nn.ModuleList()
        for d, (size, out, relu) in enumerate(sizes):
            if d >= depth - own:
                self.own.append(LinearBlocks(num_tasks, size, out, relu))
            else:
                self.shared.append(nn.Linear(size, out))
                if relu:
                    self.shared.append(nn.ReLU())

    def forward(self, x: Tensor, tasks: Tensor) -> Tensor:
        """Logits.

        Args:
            x: (N, in_features).
            tasks: (N,) int64 in [0, T); best on the host: on a device the call waits for it.

        Returns:
            (N, C).
        """
        x = self.shared(x)
        if self.own:
            tasks = tasks.cpu()  # once, and not in each layer
        for layer in self.own:
            x = layer(x, tasks)
        return x
