import json

import pytest

from mindspore_rl.errors import MsrlError
from mindspore_rl.lowering.plan import load_plan


@pytest.mark.parametrize("text", ["{}", "[1", json.dumps({"fragments": [{"extra": 1}]})])
def test_plan_of_another_version_is_told(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(MsrlError, match=r"plan.json was not written by this version"):
        load_plan(tmp_path)
