"""Networks: routed layers anywhere in a network, and the unrouted ones to compare with. Pure torch."""

from routing_lightning.networks.backbone import RoutedBackbone
from routing_lightning.networks.convnet import SimpleConvNet
from routing_lightning.networks.cross_stitch import CrossStitch
from routing_lightning.networks.paper import RoutingAllFC, RoutingAllLayers
from routing_lightning.networks.recurrent import Recurrent
from routing_lightning.networks.resnet9 import ResNet9
from routing_lightning.networks.route import replace_by_routed, route
from routing_lightning.networks.routed_layer import RoutedLayer
from routing_lightning.networks.routing import RoutingNetwork
from routing_lightning.networks.soft_mixture import SoftMixture
from routing_lightning.networks.stitch import Stitches
from routing_lightning.networks.task_specific import TaskSpecific

__all__ = [
    "CrossStitch",
    "Recurrent",
    "ResNet9",
    "RoutedBackbone",
    "RoutedLayer",
    "RoutingAllFC",
    "RoutingAllLayers",
    "RoutingNetwork",
    "SimpleConvNet",
    "SoftMixture",
    "Stitches",
    "TaskSpecific",
    "replace_by_routed",
    "route",
]
