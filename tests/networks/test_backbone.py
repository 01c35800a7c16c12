"""Networks of torchvision with routed parts."""

from urllib.error import URLError

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from routing_lightning.errors import UsageError
from routing_lightning.networks import RoutedBackbone, RoutedLayer, RoutingNetwork, backbone
from routing_lightning.routers import FixedRoutes

SHAPE, TASKS, CLASSES = (3, 32, 32), 3, 4
LAYERS = {"layer4": 2, "fc": None}


def made(**options) -> RoutedBackbone:
    return RoutedBackbone(SHAPE, TASKS, CLASSES, **{"layers": LAYERS, **options})


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    """A file with weights as torchvision publishes them."""
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.save(resnet18().state_dict(), path)
    return str(path)


def test_named_parts_are_routed_and_null_is_one_block_per_task():
    network = made()
    routed = {name: part for name, part in network.body.named_modules() if isinstance(part, RoutedLayer)}
    assert {name: part.blocks.num_blocks for name, part in routed.items()} == {"layer4": 2, "fc": TASKS}
    net = RoutingNetwork(network, FixedRoutes(), TASKS, torch.zeros(1, *SHAPE))
    assert net(torch.randn(5, *SHAPE), torch.tensor([0, 1, 2, 0, 1]))[0].shape == (5, CLASSES)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "efficientnet_b0"])
def test_other_networks_are_routed_by_their_names(name):
    last = [part for part, module in backbone.get_model(name).named_modules() if isinstance(module, nn.Linear)][-1]
    net = RoutingNetwork(made(name=name, layers={last: None}), FixedRoutes(), TASKS, torch.zeros(1, *SHAPE))
    assert net.eval()(torch.randn(2, *SHAPE), torch.tensor([0, 2]))[0].shape == (2, CLASSES)


def test_pretrained_weights_come_from_a_file_and_go_to_all_blocks(weights):
    network, saved = made(weights=weights, init="copy").body, torch.load(weights, weights_only=True)
    assert torch.equal(network.conv1.weight, saved["conv1.weight"])
    for block in network.layer4.blocks.blocks:
        assert torch.equal(block[0].conv1.weight, saved["layer4.0.conv1.weight"])
        assert torch.equal(block[1].bn2.running_var, saved["layer4.1.bn2.running_var"])
    assert network.fc.blocks.out_features == CLASSES  # new in any case


def test_routed_parts_alone_learn_where_that_is_asked_for(weights):
    net = RoutingNetwork(
        made(weights=weights, trainable="routed"), FixedRoutes(), TASKS, torch.zeros(1, *SHAPE)
    ).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net(torch.randn(8, *SHAPE), torch.arange(8) % TASKS)[0].square().sum().backward()
    torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1).step()
    moved = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert moved and all(name.startswith(("body.body.layer4", "body.body.fc")) for name in moved)


def test_a_new_classification_layer_learns_with_the_routed_parts(weights):
    for trainable in ("routed", 0.5):
        network = made(weights=weights, trainable=trainable, layers={"layer4": 2})
        slow = {id(parameter) for parameter in network.paced_parameters()[0]}
        for name, parameter in network.named_parameters():
            fast = name.startswith(("body.layer4", "body.fc"))
            assert parameter.requires_grad == (fast or trainable == 0.5), name
            assert (id(parameter) in slow) == (not fast and trainable == 0.5), name
        assert not any(name.startswith("_apart") for name in network.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "resnet1"}, "torchvision has no network 'resnet1'; give one of torchvision.models.list_models"),
        ({"layers": {"layer5": 2}}, "ResNet has no part 'layer5' to route; give names such as conv1"),
        ({"weights": "BEST"}, "resnet18 does not take the weights BEST"),
        ({"weights": "nowhere.pth"}, "weights nowhere.pth of resnet18 cannot be had .* give the path of a file"),
        ({"trainable": "some"}, "trainable is 'some'; give 'all', 'routed', or a factor"),
        ({"init": "zeros"}, "init is 'zeros'"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(options, message):
    with pytest.raises(UsageError, match=message) as error:
        made(**options)
    assert "\n" not in str(error.value)


def test_images_of_other_channels_are_refused():
    with pytest.raises(UsageError, match="the images have 1 channels but resnet18 takes 3"):
        RoutedBackbone((1, 28, 28), TASKS, CLASSES, layers=LAYERS)


def test_weights_of_another_network_are_refused(tmp_path):
    torch.save({"weight": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(UsageError, match="resnet18 does not take the weights"):
        made(weights=str(tmp_path / "other.pth"))


def test_a_download_that_fails_is_told(monkeypatch):
    def offline(*_, **__):
        raise URLError("no route to host")

    monkeypatch.setattr(backbone, "get_model", offline)
    with pytest.raises(UsageError, match="weights DEFAULT of resnet18 cannot be had .*no route to host.* give a?"):
        made(weights="DEFAULT")


def test_downloaded_weights_are_checked(monkeypatch):
    asked = []

    def download(url, *args, check_hash=False, **options):
        asked.append(check_hash)
        return resnet18().state_dict()

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", download)
    backbone.pretrained("resnet18", "DEFAULT", 3)
    assert asked == [True]
