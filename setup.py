"""Packages mindspore_rl; the top-level algorithms/ and distribution/ are installed inside it."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
REQUIREMENTS = [
    line.split("#")[0].strip()
    for line in (HERE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    if line.split("#")[0].strip()
]

setup(
    name="msrl-fragments",  # not mindspore_rl: an index has another project of that name
    version="0.1.0",
    description="Distributed reinforcement learning on MindSpore",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The mindspore_rl maintainers",
    project_urls={  # in the place of real ones: names under .invalid lead nowhere (RFC 2606)
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
    license_files=["docs/LICENSE"],
    python_requires=">=3.10,<3.13",
    install_requires=REQUIREMENTS,
    extras_require={
        "gpu": [  # what MindSpore's plug-in for CUDA 11 links to; a driver is all else it needs
            "nvidia-cublas-cu11==11.11.3.6",
            "nvidia-cuda-nvrtc-cu11==11.8.89",
            "nvidia-cuda-runtime-cu11==11.8.89",
            "nvidia-cudnn-cu11==8.9.6.50",
            "nvidia-cufft-cu11",
            "nvidia-curand-cu11",
            "nvidia-cusolver-cu11",
            "nvidia-cusparse-cu11",
        ],
        "atari": [  # gymnasium resizes by OpenCV, which from 4.12 on needs NumPy 2
            "ale-py",
            "opencv-python-headless<4.12",
        ],
        "box2d": ["box2d==2.3.10"],  # the one of that name that has wheels
        "gymnasium": [],  # a requirement; the extra was one of earlier versions
        "mujoco": ["imageio", "mujoco"],  # gymnasium's need both
        "marl": ["mpe2", "pettingzoo"],
        "offline": ["h5py"],  # reads HDF5, as Minari's data sets
        "pool": ["envpool>=1"],
        "plot": ["matplotlib", "tensorboard"],
        "export": ["onnxruntime"],  # looks at what is written; MindSpore writes it
        "site": ["mkdocs-material", "mkdocstrings[python]"],
        "sweep": ["optuna>=4"],
        "wandb": ["wandb"],
        "video": ["imageio", "imageio-ffmpeg", "pygame-ce"],  # which draws classic control
        "test": [
            "pytest",
            "pytest-cov",
            "pytest-timeout",
            "pytest-xdist",
            "hypothesis==6.170.15",  # its choice of random cells is part of the quick tests
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
            "onnxruntime",
            "opencv-python-headless<4.12",
            "optuna>=4",
            "pettingzoo",
            "wandb",
            "nvidia-cuda-nvrtc-cu11==11.8.89",  # kernels are compiled where no GPU is, too
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
        "mindspore_rl": ["py.typed", "**/*.c", "**/*.cpp", "**/*.cu", "**/*.h"],
        "mindspore_rl.algorithms": ["configs/*.yaml"],
        "mindspore_rl.distribution": ["deployments/*.yaml", "devices/*.yaml"],
    },
    entry_points={"console_scripts": ["msrl = mindspore_rl.cli.main:main"]},
)
