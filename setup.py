"""Packages mindspore_rl; the top-level algorithms/ and distribution/ are installed inside it."""

from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
REQUIREMENTS = [
    line.split("#")[0].strip()
    for line in (HERE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    if line.split("#")[0].strip()
]


class SourceDistribution(sdist):
    """A source distribution that contains requirements.txt, which this file reads."""

    def make_distribution(self) -> None:
        """Adds the file and writes the archive."""
        self.filelist.append("requirements.txt")
        super().make_distribution()


setup(
    name="msrl-fragments",  # not mindspore_rl: an index has another project of that name
    version="0.1.0",
    description="Distributed reinforcement learning on MindSpore",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The mindspore_rl maintainers",
    project_urls={  # placeholders: names under .invalid do not resolve (RFC 2606)
        "Source": "https://mindspore-rl.invalid/source",
        "Documentation": "https://mindspore-rl.invalid/docs",
    },
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.13",
    install_requires=REQUIREMENTS,
    extras_require={
        "gpu": [  # libraries of MindSpore's plug-in for CUDA 11, which also needs a driver
            "nvidia-cublas-cu11==11.11.3.6",
            "nvidia-cuda-nvrtc-cu11==11.8.89",
            "nvidia-cuda-runtime-cu11==11.8.89",
            "nvidia-cudnn-cu11==8.9.6.50",
            "nvidia-cufft-cu11",
            "nvidia-curand-cu11",
            "nvidia-cusolver-cu11",
            "nvidia-cusparse-cu11",
        ],
        "board": ["plotly", "starlette", "uvicorn"],  # plotly has the script that draws
        "atari": [  # gymnasium resizes with OpenCV, which needs NumPy 2 from 4.12 on
            "ale-py",
            "opencv-python-headless<4.12",
        ],
        "box2d": ["box2d==2.3.10"],  # the version with wheels
        "gymnasium": [],  # a requirement now; earlier versions had this extra
        "mujoco": ["imageio", "mujoco"],  # gymnasium's need both
        "marl": ["mpe2", "pettingzoo"],
        "offline": ["h5py"],  # reads HDF5, the format of Minari's data sets
        "pool": ["envpool>=1"],
        "robotics": ["gymnasium-robotics", "imageio", "mujoco"],
        "plot": ["matplotlib", "tensorboard"],
        "export": ["onnx", "onnxruntime"],  # name and check what MindSpore writes
        "site": ["mkdocs-material", "mkdocstrings[python]"],
        "sweep": ["optuna>=4"],
        "wandb": ["wandb"],
        "video": ["imageio", "imageio-ffmpeg", "pygame-ce"],  # pygame draws classic control
        "test": [
            "pytest",
            "pytest-cov",
            "pytest-timeout",
            "pytest-xdist",
            "hypothesis==6.170.15",  # the version determines the random cells of the quick tests
            "ruff",
            "mypy",
            "import-linter",
            "ale-py",
            "envpool>=1",
            "box2d==2.3.10",
            "h5py",
            "imageio",
            "imageio-ffmpeg",
            "ipykernel",
            "matplotlib",
            "mkdocs-material",
            "mkdocstrings[python]",
            "mujoco",
            "mpe2",
            "nbclient",
            "onnx",
            "onnxruntime",
            "opencv-python-headless<4.12",
            "optuna>=4",
            "pettingzoo",
            "plotly",
            "starlette",
            "uvicorn",
            "wandb",
            "nvidia-cuda-nvrtc-cu11==11.8.89",  # also compiles kernels without a GPU
        ],
    },
    packages=[
        *find_packages(include=["mindspore_rl", "mindspore_rl.*"]),
        "mindspore_rl.algorithms",
        "mindspore_rl.distribution",
    ],
    package_dir={
        "mindspore_rl.algorithms": "algorithms",
        "mindspore_rl.distribution": "distribution",
    },
    package_data={
        "mindspore_rl": [
            "py.typed",
            "**/*.c",
            "**/*.cpp",
            "**/*.cu",
            "**/*.h",
            "board/*.html",
            "board/*.js",
        ],
        "mindspore_rl.algorithms": [
            "configs/*.yaml",
            "configs/tuned/*.yaml",
            "pretrained/**/*.npz",
        ],
        "mindspore_rl.distribution": ["deployments/*.yaml", "devices/*.yaml"],
    },
    cmdclass={"sdist": SourceDistribution},
    entry_points={"console_scripts": ["msrl = mindspore_rl.cli.main:main"]},
)
