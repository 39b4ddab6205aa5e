"""The idea of this project in one file of Python and NumPy, without MindSpore and MPI.

A training loop is written once, read into a graph, cut by a policy that is only data, and projected
onto each fragment. The generated fragments run as threads that exchange messages, and end with the
parameters of the loop run as it stands. Run it: `python docs/from_scratch.py`.

What the package adds: the learner's own code in the graph, collectives inside compiled cells,
checks on probe data, processes instead of threads, failures, checkpoints.
"""
# ruff: noqa: D102  (the methods of Worker are the calls that `train` makes)

import ast
import inspect
import queue
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

SEED, NUM_ENVS, NUM_STEPS, ITERATIONS, LEARNING_RATE, STD = 1, 6, 5, 20, 0.5, 0.5

# ---- 1. What one writes: a loop that knows no ranks, and policies without control flow -----------


def train(msrl):
    """Policy gradient on a toy: push a point towards 0 against noise."""
    obs = msrl.env_reset()
    obs = msrl.boundary("observation", obs)
    for _ in msrl.iterations():
        for _ in msrl.steps():
            action = msrl.agent_act(obs)
            action = msrl.boundary("action", action)
            next_obs, reward = msrl.env_step(action)
            next_obs, reward = msrl.boundary("observation", next_obs, reward)
            old_obs, action, reward = msrl.boundary("transition", obs, action, reward)
            msrl.replay_insert(old_obs, action, reward)
            obs = next_obs
        observations, actions, rewards = msrl.replay_sample()
        grads = msrl.gradient(observations, actions, rewards)
        grads = msrl.boundary("gradient", grads)
        msrl.update(grads)


@dataclass(frozen=True)
class Policy:
    """Fragments with their components and replicas, and the marks that may be cut."""

    fragments: dict  # name: (components, replicas)
    cuts: dict  # mark: (source component, target component)


ALL = ("environment", "actor", "replay", "gradient", "update")
POLICIES = {
    "one learner; a trajectory an iteration": Policy(
        {"actor": (("environment", "actor"), 2), "learner": (("replay", "gradient", "update"), 1)},
        {"transition": ("actor", "replay"), "parameters": ("update", "actor")}),
    "one learner that acts; messages every step": Policy(
        {"environment": (("environment",), 2), "learner": (ALL[1:], 1)},
        {"observation": ("environment", "actor"), "action": ("actor", "environment")}),
    "the whole loop three times": Policy({"loop": (ALL, 3)}, {"gradient": ("gradient", "update")}),
}

# ---- 2. Reading the loop: its source becomes operations in a tree of loops -----------------------

COMPONENT = {"env_reset": "environment", "env_step": "environment", "agent_act": "actor",
             "replay_insert": "replay", "replay_sample": "replay", "gradient": "gradient",
             "update": "update"}  # the others, boundaries and copies, run where they are needed
PARAMETERS = "$parameters"  # an effect; to the analysis a variable like any other
EFFECTS = {"agent_act": ((PARAMETERS,), ()), "gradient": ((PARAMETERS,), ()),
           "update": ((PARAMETERS,), (PARAMETERS,))}  # kind: (read, written)


@dataclass(frozen=True)
class Op:
    """One call of `msrl`, or a `copy`, with the variables that it takes and gives."""

    name: str
    kind: str
    args: tuple
    targets: tuple
    mark: str
    line: int

    @property
    def reads(self):
        return self.args + EFFECTS.get(self.kind, ((), ()))[0]

    @property
    def defines(self):
        return self.targets + EFFECTS.get(self.kind, ((), ()))[1]


@dataclass(frozen=True)
class Loop:
    """A loop over `msrl.iterations()` or `msrl.steps()`."""

    kind: str
    body: tuple


def read(source):
    """Builds the tree from the text of `train`, which is not run."""
    counts = Counter()

    def names(node):
        return tuple(part.id for part in (node.elts if isinstance(node, ast.Tuple) else [node]))

    def items(nodes):
        for node in nodes:
            if isinstance(node, ast.For):
                yield Loop(node.iter.func.attr, tuple(items(node.body)))
            elif not isinstance(node.value, ast.Constant):  # the docstring
                targets = names(node.targets[0]) if isinstance(node, ast.Assign) else ()
                if isinstance(node.value, ast.Name):
                    kind, args, mark = "copy", [node.value], ""
                else:
                    kind, args = node.value.func.attr, node.value.args
                    mark = args[0].value if kind == "boundary" else ""
                args = tuple(arg.id for arg in args[bool(mark):])
                counts[kind] += 1
                yield Op(f"{kind}#{counts[kind]}", kind, args, targets, mark, node.lineno)

    return tuple(items(ast.parse(source).body[0].body))


def walk(items, loops=()):
    """Every operation with the loops around it."""
    for item in items:
        if isinstance(item, Loop):
            yield from walk(item.body, (*loops, item))
        else:
            yield item, loops


def definitions(program):
    """Which operations may have given a variable its value: {(reader, variable): {definer}}."""
    uses = defaultdict(set)

    def run(items, reaching):
        for item in items:
            if isinstance(item, Loop):  # twice: what the end of a turn leaves reaches the next
                last = run(item.body, reaching)
                both = {v: reaching.get(v, set()) | last.get(v, set()) for v in reaching | last}
                reaching = run(item.body, both)
                continue
            for variable in item.reads:
                uses[item.name, variable] |= reaching.get(variable, set())
            reaching = reaching | {variable: {item.name} for variable in item.defines}
        return reaching

    run(program, {})
    return uses


# ---- 3. Partition by demand: what a fragment needs is followed back to a mark --------------------


@dataclass
class Message:
    """A cut edge, sent after `site`; once `stacked`, after its loop, with all turns in one."""

    site: Op
    source: str
    target: str
    variables: tuple = ()
    stacked: bool = False

    @property
    def name(self):
        """What it is shown as and addressed by."""
        mark = self.site.mark or "parameters"
        return f"{mark} {self.source}->{self.target}, after {self.site.name}"


def partition(program, policy):
    """Places components where the policy says, and everything else where it is needed."""
    uses, ops = definitions(program), {op.name: op for op, _ in walk(program)}
    home = {part: f for f, (parts, _) in policy.fragments.items() for part in parts}
    placed, messages = {fragment: set() for fragment in policy.fragments}, {}

    def place(fragment, name):
        if name not in placed[fragment]:
            placed[fragment].add(name)
            for variable in ops[name].reads:
                for definer in sorted(uses[name, variable]):
                    need(fragment, variable, ops[definer], ops[name])

    def need(fragment, variable, definer, reader):
        """Follows a variable back from a fragment that reads it."""
        maker = home.get(COMPONENT.get(definer.kind))
        mark = "parameters" if variable == PARAMETERS else definer.mark
        if maker == fragment:
            return  # placed there already
        if mark in policy.cuts and home[policy.cuts[mark][0]] != fragment:
            sender = home[policy.cuts[mark][0]]
            place(sender, definer.name)
            message = messages.setdefault(
                (definer.name, sender, fragment), Message(definer, sender, fragment))
            message.variables = tuple(dict.fromkeys((*message.variables, variable)))
        elif maker is None:
            place(fragment, definer.name)
        else:
            raise SystemExit(
                f"`{variable}` would cross unmarked from {maker} (line {definer.line}) to "
                f"{fragment} (line {reader.line}): pass it through msrl.boundary(..) with one of "
                f"the marks {', '.join(policy.cuts)}")

    for op in ops.values():
        if op.kind in COMPONENT:
            place(home[COMPONENT[op.kind]], op.name)
    found = list(messages.values())
    in_steps = {op.name for op, loops in walk(program) if loops and loops[-1].kind == "steps"}
    answers = {m.source for m in found if m.site.name in in_steps}
    for m in found:  # a message leaves the inner loop unless its target answers inside it
        m.stacked = m.site.name in in_steps and m.target not in answers
    return placed, found


# ---- 4. Projection: the loop as one fragment sees it, as text ------------------------------------


def project(program, policy, placed, messages, fragment):
    """Keeps a fragment's own operations; cut edges become `send` and `receive`."""
    here = [m for m in messages if fragment in (m.source, m.target)]

    def exchange(m):
        values = ", ".join(v + "_stack" * m.stacked for v in m.variables if v != PARAMETERS)
        if m.source == fragment:
            return f'w.send("{m.name}", {values})' if values else f'w.send("{m.name}")'
        return f'{values}, = w.receive("{m.name}")' if values else f'w.receive("{m.name}")'

    def own(op):
        results, given = ", ".join(op.targets), ", ".join(op.args)
        if op.kind in COMPONENT:
            return f"{results} = w.{op.kind}({given})" if results else f"w.{op.kind}({given})"
        if op.mark == "gradient" and policy.fragments[fragment][1] > 1:
            given = f"w.all_reduce({given})"  # each replica has a share of the sum
        return f"{results} = {given}"

    def lines(items):
        for item in items:
            if isinstance(item, Loop):
                inner, kind = list(lines(item.body)), item.kind
                moved = [m for m in here if m.stacked and kind == "steps"]
                for m in moved:
                    yield exchange(m) if m.target == fragment else "; ".join(
                        f"{v}_stack = []" for v in m.variables)
                if inner:
                    yield f"for {kind[:-1]} in w.{kind}():"
                    yield from ("    " + line for line in inner)
                yield from (exchange(m) for m in moved if m.source == fragment)
                continue
            if item.name in placed[fragment]:
                yield own(item)
            for m in (m for m in here if m.site == item):
                if not m.stacked:
                    yield exchange(m)
                elif m.source == fragment:
                    yield from (f"{v}_stack.append({v})" for v in m.variables)
                else:
                    yield from (f"{v} = {v}_stack[step]" for v in m.variables)

    return "def run(w):\n" + "\n".join("    " + line for line in lines(program)) + "\n"


# ---- 5. Running: `w` of the generated code, and `msrl` of the loop as it stands ------------------


def shares(replicas):
    """Consecutive environments for each replica."""
    bounds = [NUM_ENVS * i // replicas for i in range(replicas + 1)]
    return [range(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]


def noise(purpose, envs, time):
    """Normal numbers of (seed, purpose, environment, time): it does not matter who asks."""
    return np.array([np.random.default_rng((SEED, purpose, env, time)).normal() for env in envs])


class Worker:
    """A replica of a fragment with its share of the environments."""

    def __init__(self, policy=None, fragment="", replica=0, messages=(), mail=None):
        self.replicas = {f: shares(n) for f, (_, n) in policy.fragments.items()} if policy else {}
        self.envs = self.replicas[fragment][replica] if policy else range(NUM_ENVS)
        self.fragment, self.replica, self.mail = fragment, replica, mail
        self.messages = {message.name: message for message in messages}
        self.theta, self.rows, self.acted, self.moved = np.zeros(2), [], 0, 0

    def iterations(self):
        return range(ITERATIONS)

    def steps(self):
        return range(NUM_STEPS)

    def boundary(self, mark, *values):
        return values if len(values) > 1 else values[0]

    def env_reset(self):
        self.x = noise(0, self.envs, 0)
        return self.x

    def env_step(self, action):
        self.moved += 1
        self.x = self.x + 0.3 * action + 0.1 * noise(1, self.envs, self.moved)
        return self.x, -(self.x**2)

    def agent_act(self, obs):
        self.acted += 1
        return self.theta[0] * obs + self.theta[1] + STD * noise(2, self.envs, self.acted)

    def replay_insert(self, *row):
        self.rows.append(row)

    def replay_sample(self):
        rows, self.rows = self.rows, []
        return tuple(np.stack(column) for column in zip(*rows, strict=True))

    def gradient(self, obs, action, reward):
        """This share of the mean over ALL samples: (local sum) / (global count)."""
        score = (action - self.theta[0] * obs - self.theta[1]) / STD**2 * reward
        return np.array([np.sum(score * obs), np.sum(score)]) / (NUM_STEPS * NUM_ENVS)

    def update(self, grads):
        self.theta = self.theta + LEARNING_RATE * np.clip(grads, -0.2, 0.2)

    def send(self, name, *values):
        """To each replica of the target what lies in both shares; without values: parameters."""
        for j, theirs in enumerate(self.replicas[self.messages[name].target]):
            columns = [env - self.envs.start for env in self.envs if env in theirs]
            if not values:
                self.mail[name, 0, j].put(self.theta)
            elif columns:
                self.mail[name, self.replica, j].put([np.array(v)[..., columns] for v in values])

    def receive(self, name):
        """The parts of all replicas of the source, in the order of the environments."""
        if PARAMETERS in self.messages[name].variables:
            self.theta = self.mail[name, 0, self.replica].get(timeout=10)
            return None
        parts = [self.mail[name, i, self.replica].get(timeout=10)
                 for i, theirs in enumerate(self.replicas[self.messages[name].source])
                 if set(theirs) & set(self.envs)]
        return [np.concatenate(column, axis=-1) for column in zip(*parts, strict=True)]

    def all_reduce(self, value):
        """The sum over the replicas, added up in the same order on each."""
        everyone = range(len(self.replicas[self.fragment]))
        for j in everyone:
            self.mail["all_reduce", self.replica, j].put(value)
        return sum(self.mail["all_reduce", i, self.replica].get(timeout=10) for i in everyone)


def run(policy, sources, messages):
    """A thread for each replica. Returns: the parameters of those that update them."""
    mail = {(name, i, j): queue.Queue() for name in ("all_reduce", *(m.name for m in messages))
            for i in range(NUM_ENVS) for j in range(NUM_ENVS)}
    workers = [Worker(policy, fragment, replica, messages, mail)
               for fragment, (_, count) in policy.fragments.items() for replica in range(count)]
    threads = []
    for worker in workers:
        namespace = {}
        exec(sources[worker.fragment], namespace)
        threads.append(threading.Thread(target=namespace["run"], args=(worker,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [w.theta for w in workers if "update" in policy.fragments[w.fragment][0]]


def main():
    """Shows each stage, then the numbers."""
    source = inspect.getsource(train)
    program = read(source)
    print("The loop, read:")
    for op, loops in walk(program):
        print(f"  {'  ' * len(loops)}{op.name} [{COMPONENT.get(op.kind, 'glue')}] "
              f"({', '.join(op.reads)}) -> {', '.join(op.defines)}")
    plain = Worker()
    train(plain)
    print(f"\nRun as it stands: parameters {plain.theta}")
    for title, policy in POLICIES.items():
        placed, messages = partition(program, policy)
        sources = {f: project(program, policy, placed, messages, f) for f in policy.fragments}
        print(f"\n==== {title}")
        for m in messages:
            print(f"cut {m.name}{', moved out of steps' * m.stacked}: {', '.join(m.variables)}")
        for fragment, text in sources.items():
            print(f"fragment {fragment} x{policy.fragments[fragment][1]}:")
            print("    " + text.rstrip().replace("\n", "\n    "))
        for theta in run(policy, sources, messages):
            difference = np.abs(theta - plain.theta).max()
            print(f"parameters {theta}, {difference:.0e} from the loop as it stands")
            assert difference < 1e-12
    print("\n==== the first again, without its mark")
    mark = 'old_obs, action, reward = msrl.boundary("transition", obs, action, reward)'
    forgetful = source.replace(mark, "old_obs = obs")
    try:
        partition(read(forgetful), next(iter(POLICIES.values())))
    except SystemExit as refusal:
        print(refusal)
    else:
        raise AssertionError("a value crossed unmarked")


if __name__ == "__main__":
    main()
