"""Networks of torchvision with routed parts."""

from pathlib import Path
from typing import Literal
from urllib.error import URLError

import torch
from torch import Tensor, nn
from torchvision.models import get_model, list_models

from routing_lightning.errors import UsageError
from routing_lightning.networks.route import Init, replace_by_routed
from routing_lightning.networks.routed_layer import RoutedLayer
from routing_lightning.paths import local_path


class RoutedBackbone(nn.Module):
    """A classification network of torchvision, named parts of which are routed layers.

    Args:
        image_shape: channels, height and width of the images; torchvision's networks take 3 channels.
        num_tasks: T, number of tasks.
        num_classes: C, size of the output.
        layers: number of blocks by name of the part, as in ``named_modules()`` of the network; null: one per task.
        name: name of the network, one of ``torchvision.models.list_models()``, such as ``resnet18``.
        weights: pretrained weights: torchvision's name of them, such as ``IMAGENET1K_V1`` or ``DEFAULT`` (downloaded
            once), or the path of a file with a state dict. The classification layer is new in any case. None: none.
        init: first weights of the blocks: ``"fresh"``, each its own, or ``"copy"``, all equal to those of the network.
        trainable: how the backbone learns, that is all but the routed layers and the classification layer: ``"all"``:
            like these; ``"routed"``: not at all, it stays as it is, its batch statistics too; a number in (0, 1): with
            the learning rate times this.

    Attributes:
        body: the network.

    Raises:
        UsageError: if there is no such network or part, or the weights cannot be had or do not fit.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_tasks: int,
        num_classes: int,
        layers: dict[str, int | None],
        name: str = "resnet18",
        weights: str | None = None,
        init: Init = "fresh",
        trainable: Literal["all", "routed"] | float = "all",
    ) -> None:
        super().__init__()
        slowed = isinstance(trainable, (int, float))
        if not (0 < float(trainable) < 1 if slowed else trainable in ("all", "routed")):
            raise UsageError(
                f"trainable is {trainable!r}; give 'all', 'routed', or a factor on the learning rate in (0, 1)."
            )
        if name not in list_models():
            raise UsageError(f"torchvision has no network {name!r}; give one of torchvision.models.list_models().")
        if image_shape[0] != 3:
            raise UsageError(f"the images have {image_shape[0]} channels but {name} takes 3; use another network.")
        body = get_model(name, num_classes=num_classes) if weights is None else pretrained(name, weights, num_classes)
        counts = {part: num_tasks if count is None else count for part, count in layers.items()}
        head = list(classification_layer(body).values())
        self.body = replace_by_routed(body, counts, init)
        routed = [module for module in self.body.modules() if isinstance(module, RoutedLayer)]
        # A plain list, so that they keep one name each.
        self._apart = [*routed, *(module for module in self.body.modules() if module in head)]
        self.pace = float(trainable) if slowed else 1.0
        self.frozen = trainable == "routed"
        if self.frozen:
            for parameter in self._backbone():
                parameter.requires_grad_(False)

    def _backbone(self) -> list[nn.Parameter]:
        apart = {id(parameter) for module in self._apart for parameter in module.parameters()}
        return [parameter for parameter in self.body.parameters() if id(parameter) not in apart]

    def paced_parameters(self) -> tuple[list[nn.Parameter], float]:
        """Parameters of the backbone, and the factor on their learning rate."""
        return ([], 1.0) if self.pace == 1 else (self._backbone(), self.pace)

    def train(self, mode: bool = True) -> "RoutedBackbone":
        """Sets the mode; what does not learn stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.body.eval()
            for module in self._apart:
                module.train(mode)
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Logits: images (N, 3, H, W) -> (N, num_classes)."""
        logits: Tensor = self.body(images)
        return logits


def pretrained(name: str, weights: str, num_classes: int) -> nn.Module:
    """A network with pretrained weights and a new classification layer.

    Args:
        name: torchvision's name of the network.
        weights: torchvision's name of the weights, or the path of a file.
        num_classes: size of the new layer's output.

    Raises:
        UsageError: if the weights cannot be had or do not fit.
    """
    try:
        if Path(weights).suffix in (".pth", ".pt"):
            state = torch.load(local_path(weights), map_location="cpu", weights_only=True)
            body: nn.Module = get_model(name)
            body.load_state_dict(state)
        else:
            body = get_model(name, weights=weights)
    except (URLError, OSError) as error:
        raise UsageError(
            f"weights {weights} of {name} cannot be had ({error}); give the path of a file with them."
        ) from error
    except (ValueError, KeyError, RuntimeError) as error:
        raise UsageError(
            f"{name} does not take the weights {weights} ({str(error).splitlines()[0]}); give others."
        ) from error
    for last, linear in classification_layer(body).items():
        parent, _, child = last.rpartition(".")
        setattr(body.get_submodule(parent), child, nn.Linear(linear.in_features, num_classes))
        return body
    raise UsageError(f"{name} ends with no linear layer that could be made anew; leave weights out, or take another.")


def classification_layer(body: nn.Module) -> dict[str, nn.Linear]:
    """The last linear layer of a network of torchvision, by its name; none where it ends with a convolution."""
    return dict([(part, module) for part, module in body.named_modules() if isinstance(module, nn.Linear)][-1:])
