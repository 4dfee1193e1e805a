"""What a rules file may write: the three definitions, their decorators, options, parameters and namespaces."""

from __future__ import annotations

import pytest

from shoal.core.task import Call, Profile
from shoal.errors import InputError
from shoal.formats.rules.api import task
from support.rules import graph_of, needs_of, refusal, rules_of, tasks_of


def call(action: object) -> Call:
    assert isinstance(action, Call)
    return action


def profile_of(options: str) -> Profile:
    graph, _ = graph_of(f"task('t', run='true', {options})")
    return graph.profile_of(0)


def test_tasks_group_others_and_run_commands() -> None:
    graph, targets = graph_of(
        """
        task("t1", run="/bin/true")
        task("all", needs=["t1"])
        """,
        "all",
    )
    assert (graph.names, graph.actions, targets) == (["t1", "all"], ["/bin/true", None], [1])
    assert list(graph.after_of(1)) == [0]
    assert list(graph.lines) == [1, 2]


def test_a_file_is_made_from_others_and_connected_by_name() -> None:
    graph, _ = graph_of(
        """
        file("b", needs="a", run="cp {needs} {out}")
        file(["c", "d"], needs=["b", "x"], run="split {needs} {outs}")
        """,
        "d",
    )
    assert graph.actions == ["cp a b", "split b x c d"]
    assert graph.output_names(1) == ["c", "d"]
    assert needs_of(graph, "c") == ["b", "x"]


def test_every_decorator_form_gives_a_function_action() -> None:
    text = """
        @task
        def plain():
            "Says hello.  "
        @task(needs=["plain"])
        def named(t): pass
        @task("other", needs="named")
        def whatever(t): pass
        @file("f", needs="other")
        def make(t): pass
        @rule("{x}.out", needs="f")
        def convert(t): pass
    """
    graph, _ = graph_of(text, "a.out")
    assert graph.names == ["plain", "named", "other", "f", "a.out"]
    calls = [call(action) for action in graph.actions]
    assert [one.function.__name__ for one in calls] == ["plain", "named", "whatever", "make", "convert"]
    assert [one.wants_task for one in calls] == [False, True, True, True, True]
    assert calls[4].wildcards == (("x", "a"),)
    assert rules_of(text).descriptions == {0: "Says hello."}


def test_a_definition_can_be_needed_by_what_it_returns() -> None:
    text = """
        a = task("a", run="true")
        g = task("g", needs=a)
        f = file("f", needs=[g, [a]], run="true")
    """
    graph, _ = graph_of(text, "f")
    assert needs_of(graph, "f") == ["g", "a"]


def test_needs_given_by_key_reach_command_and_function() -> None:
    text = """
        KEYS = dict(img="i.fits", others=["x", "y"])
        file("a", needs=KEYS, run="join {needs.img} {needs.others} {needs} > {out}")
        @file("b", needs=KEYS)
        def b(t): pass
    """
    tasks = tasks_of(text)
    assert tasks["a"] == "join i.fits x y i.fits x y > a"
    assert call(tasks["b"]).named == (("img", "i.fits"), ("others", ("x", "y")))


def test_needs_may_be_paths_nested_lists_and_functions() -> None:
    text = """
        from pathlib import Path
        file("o", needs=[Path("a"), ["b", ("c",)], lambda: ["d"], lambda w: w.out + ".dep"], run="cat {needs}")
    """
    assert tasks_of(text) == {"o": "cat a b c d o.dep"}


def test_a_list_that_grows_after_the_definition_does_not_change_it() -> None:
    graph, _ = graph_of("names = ['a']\nfile('o', needs=names, run='true')\nnames.append('b')")
    assert needs_of(graph, "o") == ["a"]


def test_options_become_one_shared_profile() -> None:
    text = """
        for i in range(5):
            task(f"t{i}", run="true", cores=0.5, memory="2G", resources={"licence": 1}, retries=2, timeout=9,
                 env={"A": 1}, cwd="sub", category="k")
    """
    rules = rules_of(text)
    assert len(rules.profiles.all) == 2
    profile = rules.graph([], bool)[0].profile_of(3)
    assert str(profile.resources) == "cores 0.5, licence 1, memory 2 GiB"
    assert (profile.retries, profile.timeout, profile.environment) == (2, 9.0, (("A", "1"),))
    assert (profile.directory, profile.category) == ("sub", "k")


@pytest.mark.parametrize(
    ("options", "declared"),
    [("", False), ("memory='1G'", False), ("cores=1", True), ("resources={'cores': 1}", True), ("cores=0", True)],
)
def test_one_declared_core_is_distinguished_from_none(options: str, declared: bool) -> None:
    assert profile_of(options).declares("cores") is declared


def test_true_is_not_taken_for_one_even_after_one_was_seen() -> None:
    error = refusal("task('a', run='true', retries=1)\ntask('b', run='true', retries=True)")
    assert (error.line, error.message) == (2, "retries must be a whole number, 0 or more, not True")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("core=1", "unknown option 'core'; did you mean 'cores'?"),
        ("cores=-1", "cores must be a positive number"),
        ("memory='2 apples'", "memory '2 apples' is not a size"),
        ("retries=1.5", "retries must be a whole number"),
        ("timeout=0", "timeout must be a number of seconds greater than 0"),
        ("env=['A=1']", "env must be a dict"),
        ("env={'A=': 1}", "is not a valid variable name"),
        ("resources=3", "resources must be a dict"),
        ("cores=1, resources={'cores': 2}", "cores is given twice"),
        ("category=7", "category must be text"),
        ("cwd=7", "cwd must be a directory's name"),
    ],
)
def test_a_wrong_option_is_refused_at_its_line(options: str, message: str) -> None:
    error = refusal(f"x = 1\ntask('t', run='true', {options})")
    assert (error.file, error.line) == ("flow.py", 2)
    assert message in str(error)
    assert f"task('t', run='true', {options})" in str(error)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("task('')", "a task's name must be text"),
        ("task(3, run='true')", "a task's name must be text, not 3"),
        ("task('t', run=3)", "run must be a command, a list of words or a function, not 3"),
        ("task('t', run=[])", "run must be a command"),
        ("task('t', needs=['a', None, 3])", "needs contains 3"),
        ("task('t', needs='')", "needs contains an empty name"),
        ("task('t', needs=[{'a': 'b'}])", "a dict inside a list"),
        ("file([], run='true')", "at least one output is needed"),
        ("file(['a', 'a'], run='true')", "'a' appears twice"),
        ("file(7, run='true')", "an output must be a name or a path, not 7"),
        ("task(needs=['a'])", "must decorate a function"),
        ("task(lambda: 1)", "the function has no name"),
        ("rule('{x', run='true')", "not closed"),
        ("rule('x}', run='true')", "without '{'"),
        ("rule('{x:[}', run='true')", "not a regular expression"),
        ("rule('{1}', run='true')", "is not a valid wildcard"),
        ("rule('{out}', run='true')", "'out' cannot be a wildcard"),
        ("rule(['a{x}', 'b{y}'], run='true')", "must have the same wildcards"),
        ("rule('a{x}', needs='{y}', run='true')", "{y} is neither a wildcard nor a variable"),
        ("rule('a{x}', needs='{needs}', run='true')", "needs cannot refer to itself"),
        ("rule('a{x}', run='true')(print)", "the rule for 'a{x}' already has an action"),
        ("f = file('f'); f(print); f(print)", "'f' already has an action"),
        ("param('n')", "the parameter 'n' has no value"),
    ],
)
def test_a_wrong_definition_is_refused_at_its_line(line: str, message: str) -> None:
    error = refusal(f"task('fine', run='true')\n{line}")
    assert (error.file, error.line) == ("flow.py", 2)
    assert message in error.message
    assert error.text == line


def test_two_definitions_of_one_name_are_refused_with_both_lines() -> None:
    error = refusal("task('a')\n\nfile(['b', 'a'], run='true')")
    assert str(error).startswith("flow.py:3: 'a' is already defined (line 1)")


def test_an_action_with_two_parameters_is_refused_where_it_is_defined() -> None:
    error = refusal("x = 1\n@task\ndef t(a, b): pass")
    assert error.line == 2
    assert "t() takes 2 parameters" in error.message


def test_a_parameter_with_a_default_is_left_to_the_function() -> None:
    tasks = tasks_of("for i in range(2): task(f't{i}', run=lambda i=i: i)")
    assert [call(action).wants_task for action in tasks.values()] == [False, False]


def test_parameters_take_the_type_of_their_default() -> None:
    text = """
        from pathlib import Path
        values = [param("n", 1), param("f", 0.5), param("s", "x"), param("b", False), param("p", Path("q")),
                  param("u", 7), param("w")]
        task("t", run=" ".join(map(repr, values)))
    """
    given = {"n": "3", "f": "2", "s": "y", "b": "yes", "p": "r", "w": "z"}
    graph, _ = graph_of(text, parameters=given)
    assert graph.actions == ["3 2.0 'y' True PosixPath('r') 7 'z'"]


def test_a_parameter_of_the_wrong_type_or_name_is_refused() -> None:
    with pytest.raises(InputError, match="n=x: n must be a whole number"):
        rules_of("param('n', 1)", {"n": "x"})
    with pytest.raises(InputError, match="there is no parameter 'm'; the file's parameters are: n"):
        rules_of("param('n', 1)", {"m": "1"}).check_parameters()


def test_tasks_in_a_namespace_find_each_other_first_and_files_keep_their_names() -> None:
    graph, _ = graph_of(
        """
        task("prepare", run="outer")
        task("setup", run="outer setup")
        with namespace("n"):
            task("prepare", run="inner")
            file("f", needs=["prepare", "setup"], run="make {out}")
            with namespace("m"):
                task("last", needs=dict(p="prepare", f="f"))
        """,
        "n:m:last",
    )
    assert graph.names == ["n:prepare", "setup", "f", "n:m:last"]
    assert needs_of(graph, "f") == ["n:prepare", "setup"]
    assert needs_of(graph, "n:m:last") == ["f", "n:prepare"]


def test_a_directory_is_waited_for_and_is_no_input() -> None:
    graph, _ = graph_of("directory('p q'); directory('p q')\nfile('p q/f', needs='p q', run='touch {out}')", "p q/f")
    assert graph.actions == ["mkdir -p -- 'p q'", "touch 'p q/f'"]
    assert list(graph.after_of(1)) == [0]
    assert not graph.inputs_of(1)


def test_files_are_found_excluded_and_mapped() -> None:
    text = """
        raw = files("r/{x}.fits").exclude("r/*bad*")
        other = files("r/*").map("{a}", "{a}.txt")
        task("t", run=f"{raw} {raw.map('p/{x}.jpg')} {raw.ext('.z')} {raw.pathmap('%n')} {other}")
    """
    graph, _ = graph_of(text, existing=["r/a.fits", "r/bad.fits", "r/b.fits", "r/c.txt"])
    assert graph.actions == [
        "['r/a.fits', 'r/b.fits'] ['p/a.jpg', 'p/b.jpg'] ['r/a.z', 'r/b.z'] ['a', 'b'] ['r/c']",
    ]


def test_definitions_outside_a_run_say_how_to_run_the_file() -> None:
    with pytest.raises(InputError, match="run this file with shoal run") as caught:
        task("t", run="true")
    assert caught.value.file == __file__
