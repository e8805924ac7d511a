"""sluice.zipslicer beside zipslicer, on the same input: results, types, errors; and what zipslicer only planned."""
import unittest
import warnings

import torch
import zipslicer
from case import WRITES, Case, bits, needs_editing

import sluice
import sluice.zipslicer as door


class Beside(Case):
    def setUp(self):
        super().setUp()
        warnings.simplefilter("ignore")
        wide = torch.arange(12.0).reshape(3, 4)
        self.made = {
            "a": wide, "t": wide.t(), "part": wide[1:], "b": torch.ones(2, dtype=torch.bfloat16), "c": torch.tensor(3),
            "d": torch.tensor([True, False]), "h": torch.ones(3).half(),
        }
        self.path = self.at("z.pt")
        torch.save(self.made, self.path)

    def test_the_mapping_is_the_same(self):
        theirs, ours = zipslicer.load(self.path), door.load(self.path)
        self.assertEqual(list(ours.keys()), list(theirs.keys()))
        self.assertEqual((len(ours), "a" in ours, "q" in ours), (len(theirs), "a" in theirs, "q" in theirs))
        for name in theirs.keys():
            self.assertEqual(bits(ours[name]), bits(self.made[name]), name)
            meta, known = ours.get_meta(name), theirs.get_meta(name)
            self.assertEqual((meta.shape, meta.size(), meta.dtype), (known.shape, known.size(), known.dtype))
        self.assertEqual([name for name, _ in ours.items()], [name for name, _ in theirs.items()])
        for call in (lambda found: found["q"], lambda found: found.get_meta("q"), lambda found: found.__delitem__("q")):
            (_, wrong), (_, error) = self.both([lambda: call(ours), lambda: call(theirs)])
            self.assertEqual((wrong, error is None), (error, False))

    def test_values_come_one_by_one_where_the_original_refuses(self):
        with self.assertRaisesRegex(Exception, "meant for loading"):
            zipslicer.load(self.path).values()
        self.assertSame(dict(zip(self.made, door.load(self.path).values())), self.made)

    def test_what_is_said_of_tensors_is_the_same(self):
        theirs, ours = zipslicer.load(self.path), door.load(self.path)
        for lazy in (theirs, ours):
            lazy["a"] = torch.zeros(1)
        for name in self.made:
            self.assertSame({name: ours.reform_tensor(name)}, {name: theirs.reform_tensor(name)})
            self.assertEqual((ours.validate_tensor_ref(name), theirs.validate_tensor_ref(k=name)), (True, True))
        del ours["b"], theirs["b"]
        for call in (
            lambda found: found.reform_tensor("q"), lambda found: found.validate_tensor_ref("q"), lambda found: found.reform_tensor("b"),
            lambda found: found.get_meta(k="b"), lambda found: found.validate_tensor_ref("b"),
        ):
            (_, wrong), (_, error) = self.both([lambda: call(ours), lambda: call(theirs)])
            self.assertEqual((wrong, error), ("KeyError", "KeyError"))

    def test_storages_are_the_same(self):
        for module in (zipslicer, door):
            typed = module.get_typed_storage(module.create_storage(bytearray(b"\1\0\2\0")), torch.int16)
            self.assertEqual((list(typed), typed.dtype), ([1, 2], torch.int16))
        self.assertEqual(*(type(module.create_storage(bytearray(8))) for module in (zipslicer, door)))

    def test_a_module_takes_it(self):
        module = torch.nn.Linear(4, 3)
        torch.save(module.state_dict(), self.at("m.pt"))
        for each in (zipslicer, door):
            other = torch.nn.Linear(4, 3)
            other.load_state_dict(each.load(self.at("m.pt")))
            self.assertSame(other.state_dict(), module.state_dict())

    def test_slices_changes_and_saving(self):
        lazy = door.load(self.path, cache_tensors=True)
        self.assertEqual(lazy.get_slice("a")[1:, ::2].tolist(), self.made["a"][1:, ::2].tolist())
        self.assertIs(lazy["a"], lazy["a"])
        lazy["a"], lazy["new"] = torch.zeros(2), torch.ones(1)
        del lazy["c"]
        self.assertEqual((lazy.changed(), lazy.deleted(), len(lazy)), (["a", "new"], ["c"], len(self.made)))
        if not WRITES:
            self.skipTest("this libsluice does not write")
        lazy.save(self.at("m.safetensors"))
        found = sluice.load(self.at("m.safetensors"))
        self.assertEqual((set(found), found["a"].tolist()), (set(self.made) - {"c"} | {"new"}, [0, 0]))
        self.assertEqual(zipslicer.load(self.path)["a"].tolist(), self.made["a"].tolist(), "the checkpoint is as it was")

    @needs_editing
    def test_changes_are_saved_in_place(self):
        lazy = door.load(self.path)
        lazy["a"] = torch.full((2, 2), 5.0)
        lazy.save_changes()
        self.assertEqual(lazy["a"].tolist(), [[5, 5], [5, 5]])
        self.assertEqual(torch.load(self.path)["a"].tolist(), [[5, 5], [5, 5]])
        self.assertEqual(torch.load(self.path)["b"].tolist(), [1, 1])

    def test_tables_of_types_are_the_same(self):
        self.assertEqual(door.dtype_sizes, zipslicer.dtype_sizes)
        self.assertEqual(door.dtype_by_name, zipslicer.dtype_by_name)

    def test_types_are_cast(self):
        self.assertEqual(door.load(self.path, dtype=torch.float16)["a"].dtype, torch.float16)


if __name__ == "__main__":
    unittest.main()
