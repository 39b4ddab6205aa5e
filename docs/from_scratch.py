"""The idea of this project in one file of Python and NumPy, without MindSpore and MPI.

A training loop is read into a graph, not run. A distribution policy is data; it cuts the graph into
fragments. Each fragment gets its part of the loop as generated source. Cut edges become messages.
Under every policy the parameters equal those of the plain loop. The package also reads learners,
infers what is sharded, and compiles. Run: `python docs/from_scratch.py`
"""
# ruff: noqa: D102  (most methods of Replica are what `train` calls)

import ast
import inspect
import queue
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

import numpy as np

SEED, NUM_ENVS, NUM_STEPS, ITERATIONS = 1, 7, 5, 20


# ---- 1. The user's part: a loop that knows no ranks, and policies without control flow -----------
def train(msrl):
    """REINFORCE on a toy: noise moves points that must stay at 0; `params` is one gain."""
    params = 0.0
    obs = msrl.boundary("observation", msrl.env_reset())
    for _ in msrl.iterations:
        for _ in msrl.steps:
            action = msrl.boundary("action", msrl.agent_act(params, obs))
            next_obs, reward = msrl.boundary("observation", msrl.env_step(action))
            transition = msrl.boundary("transition", (obs, action, reward))
            msrl.replay_insert(transition)
            obs = next_obs
        batch = msrl.replay_sample()
        grads = msrl.boundary("gradient", msrl.gradient(params, *batch))
        params = msrl.boundary("parameters", msrl.update(params, grads))


COMPONENT = {"env_reset": "environment", "env_step": "environment", "agent_act": "actor",
             "replay_insert": "replay", "replay_sample": "replay", "gradient": "gradient",
             "update": "update"}  # any other statement is glue: it runs wherever it is needed
KIND = {"gradient": "partial", "parameters": "replicated"}  # other marks: sharded
JOIN = {"partial": sum,  # each replica has one term of the value
        "replicated": lambda parts: parts[0],  # each has the same
        "sharded": lambda parts: np.concatenate(parts, axis=-1)}  # each has its environments
ACTOR, LEARNER = ["environment", "actor"], ["replay", "gradient", "update"]
POLICIES = {  # name: ({fragment: (components, replicas)}, {mark that may be cut: who sends there})
    "SingleLearnerCoarse": ({"actor": (ACTOR, 2), "learner": (LEARNER, 1)},
                            {"transition": "actor", "parameters": "update"}),
    "SingleLearnerFine": ({"environment": (ACTOR[:1], 2), "learner": (ACTOR[1:] + LEARNER, 1)},
                          {"observation": "environment", "action": "actor"}),
    "MultipleLearners": ({"actor": (ACTOR, 3), "learner": (LEARNER, 2)},
                         {"transition": "actor", "gradient": "gradient", "parameters": "update"}),
    "GPUOnly": ({"loop": (ACTOR + LEARNER, 3)}, {"gradient": "gradient"}),  # here without a GPU
    "Central": ({"worker": (ACTOR + LEARNER[:2], 3), "server": (LEARNER[2:], 1)},
                {"gradient": "gradient", "parameters": "update"}),
}


# ---- 2. Reading: statements of the loop become operations, with edges between them ---------------
class Op:
    """An operation: one statement of the loop, as a syntax tree."""

    def __init__(self, node, loops):
        calls = {n.func.attr: n for n in ast.walk(node) if isinstance(n, ast.Call)}
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id != "msrl"]
        self.line, self.text, self.loops = node.lineno, ast.unparse(node), loops
        self.mark = calls["boundary"].args[0].value if "boundary" in calls else None
        self.component = next((COMPONENT[call] for call in calls if call in COMPONENT), None)
        self.reads = [n.id for n in names if isinstance(n.ctx, ast.Load)]
        self.targets = [n.id for n in names if isinstance(n.ctx, ast.Store)]


def read(statements, loops=()):
    """Returns all operations, each with its enclosing loops, the outermost first."""
    ops = []
    for node in statements:
        if isinstance(node, ast.For):
            ops += read(node.body, (*loops, node))
        else:
            ops.append(Op(node, loops))
    return ops


def find_edges(ops):
    """Returns all (definer, variable, reader); any assignment of a name may reach any reader."""
    return [(definer, variable, reader) for reader in ops for variable in reader.reads
            for definer in ops if variable in definer.targets]


# ---- 3. Partition: traces back what a fragment needs, up to the cuts -----------------------------
class Message(NamedTuple):
    """A cut edge: all replicas of a fragment send the site's values to all replicas of another."""

    name: str
    site: Op
    source: str
    target: str
    turns: int  # how many iterations of the loop are sent together


def partition(ops, fragments, cuts):
    """Returns: {fragment: its operations}, and the messages."""
    home = {part: fragment for fragment, (parts, _) in fragments.items() for part in parts}
    owner = {op: home.get(op.component or cuts.get(op.mark)) for op in ops}  # None: glue
    # A message of every step can wait for the last one unless its target answers at every step.
    busy = {owner[op] for op in ops if op.mark in cuts and len(op.loops) == 2}
    placed, messages = {}, []
    for fragment, (_, replicas) in fragments.items():
        placed[fragment] = [op for op in ops if owner[op] == fragment]
        for needed in placed[fragment]:  # the list grows meanwhile
            for definer, variable, _ in [e for e in find_edges(ops) if e[2] == needed]:
                source = owner[definer] or fragment
                if source == fragment and definer not in placed[fragment]:
                    placed[fragment].append(definer)
                if source != fragment and definer.mark not in cuts:
                    raise SystemExit(
                        f"`{variable}` would cross unmarked from {source} (line {definer.line}) to "
                        f"{fragment} (line {needed.line}): no boundary {' or '.join(cuts)} between")
                # Replicas that have one term each of a sum send it to each other and add the terms.
                if source != fragment or (KIND.get(definer.mark) == "partial" and replicas > 1):
                    name = f"{definer.mark} of line {definer.line} to {fragment}"
                    turns = NUM_STEPS if len(definer.loops) == 2 and fragment not in busy else 1
                    messages.append(Message(name, definer, source, fragment, turns))
    return placed, list(dict.fromkeys(messages))


# ---- 4. Projection: the loop as one fragment sees it, as source ----------------------------------
def project(ops, fragment, placed, messages):
    """Returns the fragment's statements, with `send` and `receive` at the cuts."""
    lines, opened = [], []
    for op in ops:
        values = f"[{', '.join(op.targets)}]"
        here = [m for m in messages if m.site == op]
        code = [op.text] if op in placed[fragment] else []
        code += [f"msrl.send('{m.name}', {values})" for m in here if m.source == fragment]
        code += [f"{values} = msrl.receive('{m.name}')" for m in here if m.target == fragment]
        for depth, loop in enumerate(op.loops):
            if code and loop not in opened:  # leaves out a loop without code of this fragment
                opened.append(loop)
                lines.append("    " * depth + f"for _ in {ast.unparse(loop.iter)}:")
        lines += ["    " * len(op.loops) + line for line in code]
    return "\n".join(lines)


# ---- 5. Running: the functions that the loop calls, and messages between replicas ----------------
class Replica:
    """A replica of a fragment, with its share of the environments."""

    def __init__(self, fragment, number, shares, messages=(), mail=None):
        self.fragment, self.number, self.shares, self.mail = fragment, number, shares, mail
        self.iterations, self.steps = range(ITERATIONS), range(NUM_STEPS)
        self.messages = {m.name: m for m in messages}
        self.unsent, self.unread = defaultdict(list), defaultdict(list)
        self.envs, self.rows, self.draws = shares[fragment][number], [], Counter()

    def noise(self, purpose):
        """Normal numbers from (seed, purpose, environment, time), the same for every caller."""
        self.draws[purpose] += 1
        keys = [(SEED, purpose, env, self.draws[purpose]) for env in self.envs]
        return np.array([np.random.default_rng(key).normal() for key in keys])

    def boundary(self, mark, values):
        return values

    def env_reset(self):
        self.x = self.noise(0)
        return self.x

    def env_step(self, action):
        self.x = self.x + 0.3 * action + 0.1 * self.noise(1)
        return self.x, -(self.x**2)

    def agent_act(self, params, obs):
        return params * obs + 0.5 * self.noise(2)

    def replay_insert(self, transition):
        self.rows.append(transition)

    def replay_sample(self):
        return np.stack(self.rows[-NUM_STEPS:], axis=1)

    def gradient(self, params, obs, action, reward):
        """This share's term of the mean over ALL samples: (local sum) / (global count)."""
        return np.sum(4 * (action - params * obs) * obs * reward) / (NUM_STEPS * NUM_ENVS)

    def update(self, params, grads):
        self.params = params + 0.5 * grads
        return self.params

    def send(self, name, values):
        """Sends values to each replica of the target; of sharded ones, the common environments."""
        message, unsent = self.messages[name], self.unsent[name]
        unsent.append(values)
        if len(unsent) == message.turns:
            stack = np.array(unsent)  # [iterations, values, ..., environments], if sharded
            unsent.clear()
            for number, share in enumerate(self.shares[message.target]):
                part = stack if message.site.mark in KIND else stack[..., np.isin(self.envs, share)]
                self.mail[name, self.number, number].put(part)

    def receive(self, name):
        """Returns the values of one iteration, from all replicas of the source in their order."""
        message, unread = self.messages[name], self.unread[name]
        if not unread:
            parts = [self.mail[name, number, self.number].get(timeout=10)
                     for number in range(len(self.shares[message.source]))]
            unread.extend(JOIN[KIND.get(message.site.mark, "sharded")](parts))
        return unread.pop(0)


def run(fragments, messages, sources):
    """Runs each replica in a thread. Returns: the parameters of those that update them."""
    shares = {f: np.array_split(np.arange(NUM_ENVS), count) for f, (_, count) in fragments.items()}
    mail = {(m.name, i, j): queue.Queue() for m in messages
            for i in range(NUM_ENVS) for j in range(NUM_ENVS)}
    replicas = [Replica(fragment, number, shares, messages, mail)
                for fragment, (_, count) in fragments.items() for number in range(count)]
    with ThreadPoolExecutor(len(replicas)) as threads:
        runs = [threads.submit(exec, sources[r.fragment], {"msrl": r}) for r in replicas]
        for done in as_completed(runs):
            done.result()  # raises the replica's exception
    return np.array([r.params for r in replicas if "update" in fragments[r.fragment][0]])


# ---- 6. Results: every policy against the plain loop, and two mistakes ---------------------------
source = inspect.getsource(train)
ops = read(ast.parse(source).body[0].body[1:])  # all but the docstring
print("The graph: operations, and the lines that define what they read")
for op in ops:
    reads = [f"{variable} of {d.line}" for d, variable, reader in find_edges(ops) if reader == op]
    print(f"{op.line:2} {op.component or 'glue':11} {op.text}  # {', '.join(reads)}")
plain = Replica("all", 0, {"all": [np.arange(NUM_ENVS)]})
train(plain)
print(f"Run as it stands, the loop ends with params {plain.params:.3f} (best: -1 / 0.3)")

for title, (fragments, cuts) in POLICIES.items():
    print(f"\n==== {title}")
    placed, messages = partition(ops, fragments, cuts)
    for m in messages:
        print(f"message from {m.source}: {m.name}" + ", all steps in one" * (m.turns > 1))
    sources = {fragment: project(ops, fragment, placed, messages) for fragment in fragments}
    for fragment, text in sources.items():
        print(f"---- {fragment} x{fragments[fragment][1]}\n{text}")
    difference = np.abs(run(fragments, messages, sources) - plain.params).max()
    print(f"---- params at most {difference:.0e} from the loop as it stands")
    assert difference < 1e-12

# Two mistakes. First, into the generated source: each worker takes the mean over its own samples.
bug = f"msrl.gradient(params, *batch) * {NUM_ENVS} / len(msrl.envs) / {fragments['worker'][1]}"
sources["worker"] = sources["worker"].replace("msrl.gradient(params, *batch)", bug)
difference = np.abs(run(fragments, messages, sources) - plain.params).max()
print(f"\nWith a mean of means, {title} is {difference:.0e} off: caught")
assert difference > 1e-3
unmarked = source.replace('msrl.boundary("transition", ', "(")
try:
    partition(read(ast.parse(unmarked).body[0].body[1:]), *POLICIES["SingleLearnerCoarse"])
    raise AssertionError("a value crossed unmarked")
except SystemExit as refusal:
    print(f"Without the mark `transition`, SingleLearnerCoarse is refused: {refusal}")
