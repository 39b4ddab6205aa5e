"""Updates of parameters: Adam with a step size for each update, and target networks."""

from mindspore import Parameter, Tensor, nn, ops


class Adam(nn.Adam):
    """MindSpore's Adam (Kingma and Ba 2015), whose step size may change from update to update."""

    def apply(self, grads: tuple, learning_rate: Tensor) -> None:
        """Takes one step: `msrl.update(self.optimizer.apply, grads, learning_rate)`.

        Args:
            grads: one for each of the optimiser's parameters.
            learning_rate: 0-d float32, the step size.
        """
        ops.assign(self.learning_rate, learning_rate)
        self.construct(grads)


def target_parameters(*networks: nn.Cell) -> list[Parameter]:
    """Returns the parameters of target networks, and sets that no gradient reaches them."""
    found = [parameter for network in networks for parameter in network.trainable_params()]
    for parameter in found:
        parameter.requires_grad = False
    return found


def polyak_update(target: list[Parameter], online: list[Parameter], tau: float) -> None:
    """Moves target parameters towards the online ones: `target += tau (online - target)`.

    Args:
        target: see `target_parameters`.
        online: those of the networks that learn, in the same order.
        tau: share of the difference, in [0, 1]; 1 copies.
    """
    for i in range(len(target)):
        ops.assign_add(target[i], tau * (online[i] - target[i]))


def copy_every(
    target: list[Parameter], online: list[Parameter], updates: Parameter, every: int
) -> None:
    """Counts an update, and copies the online parameters to the target ones after some of them.

    Args:
        target: see `target_parameters`.
        online: those of the networks that learn, in the same order.
        updates: 0-d int32, the number of updates before this one, which is raised by 1.
        every: number of updates from one copy to the next, >= 1.
    """
    ops.assign_add(updates, 1)
    due = updates % every == 0
    for i in range(len(target)):
        ops.assign(target[i], ops.where(due, online[i], target[i]))
