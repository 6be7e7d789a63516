# SPDX-License-Identifier: Apache-2.0
"""The decorator, the class, and services that call run_periodic_tasks
themselves.
"""

import datetime
import functools
import inspect
import pickle
import re
import subprocess
import sys
import threading
import types

import pytest
from oslo_config import cfg

from distperiodic.core.cron import Cron
from distperiodic.core.job import Delivery
from distperiodic.core.job import Scope
from distperiodic.core.schedule import Every
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import Overlap
from distperiodic.exceptions import InvalidJob
from distperiodic.exceptions import InvalidSchedule
from distperiodic.exceptions import JobNameTaken
from distperiodic.periodic import JobOptions
from distperiodic.periodic import PeriodicTasks
from distperiodic.periodic import command
from distperiodic.periodic import periodic_task
from distperiodic.testing import FrozenClock
from tests.logged import events
from tests.logged import lines


def here(lines=0):
    """Return 'test_periodic.py:N', N being the caller's line plus *lines*."""
    return f'test_periodic.py:{sys._getframe(1).f_lineno + lines}'


def oslo_task(
    spacing=0,
    enabled=True,
    immediate=False,
    name=None,
    external_ok=False,
):
    """Set the attributes that oslo_service.periodic_task sets."""

    def decorate(function):
        function._periodic_task = True
        function._periodic_external_ok = external_ok
        function._periodic_enabled = enabled
        function._periodic_name = name or function.__name__
        function._periodic_spacing = spacing
        function._periodic_immediate = immediate
        function._periodic_last_run = None if immediate else 0.0
        return function

    return decorate


def configured(tmp_path, text):
    """Return the configuration of a host with this file."""
    file = tmp_path / 'host.conf'
    file.write_text(text)
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(file)], project='host')
    return conf


class Nodes(PeriodicTasks):
    def list_nodes(self, context):
        return ['node-1', 'node-2']

    @periodic_task
    def beat(self, context):
        return ('beat', self, context)

    @periodic_task(spacing=10, objects='list_nodes')
    def poll(self, context, node_id):
        return ('poll', node_id)


class Later(Nodes):
    @periodic_task(spacing=5, name='beat')
    def beat(self, context):
        return 'later'


class TestTheDecorator:
    def test_without_parentheses_it_means_once_a_minute_everywhere(self):
        job = Nodes(None).jobs['beat']
        assert job.schedule == Every(60)
        assert job.scope is Scope.MEMBER

    def test_empty_parentheses_mean_the_same(self):
        class Tasks(PeriodicTasks):
            @periodic_task()
            def beat(self, context):
                pass

        assert Tasks(None).jobs['beat'].schedule == Every(60)

    def test_it_leaves_the_method_callable(self):
        tasks = Nodes(None)
        assert tasks.poll('context', 'node-1') == ('poll', 'node-1')

    def test_every_option_arrives_in_the_job(self):
        class Tasks(PeriodicTasks):
            def things(self, context):
                return []

            @periodic_task(
                cron='0 2 * * *',
                timezone='Europe/Berlin',
                objects='things',
                misfire='all',
                overlap='wait',
                spread=True,
                retries=3,
                timeout=30,
                priority=-1,
                topic='slow',
                max_in_flight=5,
                delivery='at_most_once',
                name='snapshot',
                enabled=False,
                run_immediately=True,
                grace=120,
            )
            def take(self, context, thing):
                pass

        (job,) = Tasks(None).jobs.values()
        assert job.name == 'snapshot'
        assert job.schedule == Cron('0 2 * * *', 'Europe/Berlin')
        assert job.scope is Scope.OBJECTS
        assert job.objects == 'things'
        assert job.misfire is Misfire.ALL
        assert job.overlap is Overlap.WAIT
        assert job.spread
        assert (job.retries, job.timeout, job.priority) == (3, 30, -1)
        assert (job.topic, job.max_in_flight) == ('slow', 5)
        assert job.delivery is Delivery.AT_MOST_ONCE
        assert not job.enabled
        assert job.run_immediately
        assert job.grace == 120

    def test_a_job_has_the_file_and_line_of_its_decorator(self):
        place = here(2)

        @periodic_task(spacing=5)
        def beat(self, context):
            pass

        tasks = PeriodicTasks(None)
        tasks.add_periodic_task(beat)
        assert tasks.jobs['beat'].defined_at == place

    @pytest.mark.parametrize(
        ('options', 'error', 'says'),
        [
            ({'spacing': 0}, InvalidSchedule, 'spacing is 0; give'),
            ({'spacing': -60}, InvalidSchedule, 'spacing is -60; give'),
            ({'spacing': '5'}, InvalidSchedule, "spacing is '5'; give"),
            (
                {'spacing': 5, 'cron': '@daily'},
                InvalidSchedule,
                "spacing=5 and cron='@daily' are both given; remove",
            ),
            ({'cron': '61 * * * *'}, InvalidSchedule, "minute '61'"),
            (
                {'cron': '@daily', 'timezone': 'Europe/Berln'},
                InvalidSchedule,
                "did you mean 'Europe/Berlin'?",
            ),
            (
                {'timezone': 'Europe/Berlin'},
                InvalidSchedule,
                "timezone='Europe/Berlin' without cron=",
            ),
            (
                {'misfire': 'lates'},
                InvalidJob,
                "misfire is 'lates'; give one of skip, latest, all",
            ),
            ({'overlap': 'x'}, InvalidJob, "overlap is 'x'; give one of"),
            ({'scope': 'all'}, InvalidJob, "scope is 'all'; give one of"),
            (
                {'scope': 'group', 'objects': 'nodes'},
                InvalidJob,
                "scope='group' contradicts objects='nodes'; pass objects=",
            ),
            ({'retries': -1}, InvalidJob, 'retries is -1; give'),
            ({'timeout': -1}, InvalidJob, 'timeout is -1; give'),
        ],
    )
    def test_a_bad_option_is_refused_when_the_module_is_imported(
        self, options, error, says
    ):
        place = here(3)
        with pytest.raises(error) as refused:

            @periodic_task(**options)
            def poll(self, context):
                pass

        text = str(refused.value)
        assert text.startswith(f"{place}: job 'poll': ")
        assert says in text
        assert '\n' not in text

    def test_a_bad_name_is_refused(self):
        with pytest.raises(InvalidJob, match=r'\.py:\d+: job name is '):

            @periodic_task(name='')
            def poll(self, context):
                pass

    def test_a_number_in_the_place_of_the_method_is_refused(self):
        place = here(4)
        with pytest.raises(
            InvalidJob, match=r'periodic_task\(60\) is not a method'
        ) as refused:
            periodic_task(60)
        assert str(refused.value).startswith(place)

    def test_coroutines_and_generators_are_refused(self):
        """A call of such a function runs none of its code, so the job would
        seem to succeed.
        """

        async def coroutine(self, context):
            pass

        def generator(self, context):
            yield

        async def both(self, context):
            yield

        for function in (coroutine, generator, both):
            with pytest.raises(InvalidJob, match='a call would not run it'):
                periodic_task(function)

    def test_a_misspelt_argument_is_refused_where_it_stands(self):
        place = here(4)
        with pytest.raises(
            InvalidJob, match="no argument 'spaceing'; did you mean 'spacing'"
        ) as refused:
            periodic_task(spaceing=60)
        assert str(refused.value).startswith(place)
        with pytest.raises(InvalidJob, match='its arguments are spacing, '):
            periodic_task(xyzzy=60)

    def test_each_option_is_described_and_shown_with_its_default(self):
        described = re.findall(
            r'^ *:param (\w+):', periodic_task.__doc__, re.MULTILINE)
        shown = inspect.signature(periodic_task).parameters

        assert described == list(shown) == [
            'method', *JobOptions.__annotations__]
        assert {name: shown[name].default for name in (
            'spacing', 'scope', 'overlap', 'retries', 'topic', 'enabled')} == {
                'spacing': None, 'scope': None, 'overlap': Overlap.SKIP,
                'retries': 0, 'topic': 'default', 'enabled': True}

    @pytest.mark.parametrize(
        ('options', 'method', 'told'),
        [
            ({}, lambda self: None,
             r'wrong\(context\), and is wrong\(self\)$'),
            ({}, lambda self, context, node: None,
             r"; give objects='METHOD' to run it for each object$"),
            ({'objects': 'nodes'}, lambda self, context: None,
             r'wrong\(context, object_id\) for each object, and is '
             r'wrong\(self, context\)$'),
            (
                {'objects': 'nodes'},
                lambda self, context, node, more: None,
                'more',
            ),
            (
                {'scope': 'group'},
                lambda self, context, *, more: None,
                'more',
            ),
        ],
    )
    def test_a_method_of_other_arguments_is_refused_at_import(
        self, options, method, told
    ):
        """Without this check, the error would occur at each tick."""
        method.__name__ = 'wrong'
        wrong = periodic_task(spacing=5, **options)(method)

        with pytest.raises(InvalidJob, match=told) as refused:
            type('Tasks', (PeriodicTasks,), {'wrong': wrong})
        assert str(refused.value).startswith('test_periodic.py:')

    @pytest.mark.parametrize('method', [
        lambda self, context, node: None,
        lambda self, context, node, more=1: None,
        lambda self, context, node, **more: None,
        lambda self, *more: None,
        lambda *more: None])
    def test_a_method_that_takes_more_is_no_mistake(self, method):
        method.__name__ = 'right'
        right = periodic_task(objects='nodes')(method)

        assert type('Tasks', (PeriodicTasks,), {
            'right': right, 'nodes': lambda self, context: []})(None).jobs

    def test_a_decorator_may_add_an_argument(self):
        """The library calls the function that the decorator returned."""

        def with_session(function):
            @functools.wraps(function)
            def wrapped(self, context):
                return function(self, context, 'a session')

            return wrapped

        class Tasks(PeriodicTasks):
            @periodic_task(spacing=5)
            @with_session
            def sync(self, context, session):
                return session

        assert Tasks(None).handler('sync')(None) == 'a session'

    def test_a_mixin_is_checked_with_the_class_that_uses_it(self):
        class Mixin:
            @periodic_task(spacing=5)
            def beat(self):
                pass

        with pytest.raises(InvalidJob, match='beat is called as'):
            class Tasks(Mixin, PeriodicTasks):
                pass

    def test_a_function_that_is_added_is_checked(self):
        @periodic_task(spacing=5)
        def beat():
            pass

        with pytest.raises(InvalidJob, match='beat is called as'):
            PeriodicTasks(None).add_periodic_task(beat)

    def test_a_catalogue_method_of_other_arguments_is_refused(self):
        class Tasks(PeriodicTasks):
            def nodes(self):
                return []

            @periodic_task(objects='nodes')
            def poll(self, context, node):
                pass

        with pytest.raises(
                InvalidJob, match=r'nodes\(\) is called as nodes\(context\)'):
            Tasks(None)

    def test_a_promise_is_no_run(self):
        """A decorator may hide that the method is a coroutine function."""

        def logged(function):
            @functools.wraps(function)
            def wrapped(self, context):
                return function(self, context)

            return wrapped

        class Tasks(PeriodicTasks):
            @periodic_task(spacing=5, run_immediately=True)
            @logged
            async def beat(self, context):
                pass

        with pytest.raises(InvalidJob, match='its body did not run'):
            Tasks(None).run_periodic_tasks(None, raise_on_error=True)

    def test_the_wait_before_a_retry_is_an_option(self):
        class Tasks(PeriodicTasks):
            @periodic_task(retries=3, retry_backoff=30)
            def beat(self, context):
                pass

        assert Tasks().jobs['beat'].retry_backoff == 30

    def test_a_method_decorated_twice_is_refused(self):
        with pytest.raises(InvalidJob, match='beat is decorated twice'):

            @periodic_task(spacing=5)
            @periodic_task(spacing=7)
            def beat(self, context):
                pass

    def test_static_and_class_methods_may_be_jobs(self):
        class Tasks(PeriodicTasks):
            @periodic_task(spacing=5)
            @staticmethod
            def static(context):
                return ('static', context)

            @periodic_task(spacing=5)
            @classmethod
            def of_class(cls, context):
                return (cls, context)

            @staticmethod
            @periodic_task(spacing=5)
            def inner(context):
                return ('inner', context)

        tasks = Tasks(None)
        assert tasks.handler('static')(1) == ('static', 1)
        assert tasks.handler('of_class')(1) == (Tasks, 1)
        assert tasks.handler('inner')(1) == ('inner', 1)


class TestPeriodicTasks:
    def test_it_binds_handlers_and_catalogues(self):
        tasks = Nodes(None)
        assert list(tasks.jobs) == ['beat', 'poll']
        assert tasks.handler('beat')('c') == ('beat', tasks, 'c')
        assert tasks.catalogue('poll')('c') == ['node-1', 'node-2']
        assert tasks.catalogue('beat') is None

    def test_it_keeps_the_configuration(self):
        conf = object()
        assert Nodes(conf).conf is conf

    def test_its_jobs_cannot_be_changed_from_outside(self):
        with pytest.raises(TypeError):
            Nodes(None).jobs['beat'] = None

    def test_a_decorated_override_replaces_the_job_in_its_place(self):
        tasks = Later(None)
        assert list(tasks.jobs) == ['beat', 'poll']
        assert tasks.jobs['beat'].schedule == Every(5)
        assert tasks.handler('beat')(None) == 'later'
        assert Nodes(None).jobs['beat'].schedule == Every(60)

    @pytest.mark.parametrize('decorator', [periodic_task, oslo_task()])
    def test_an_override_that_is_not_decorated_removes_the_job_with_a_log_line(
            self, caplog, decorator):
        class Loud(PeriodicTasks):
            @decorator
            def beat(self, context):
                pass

        class Quiet(Loud):
            def beat(self, context):
                pass

        assert not Quiet(None).jobs
        assert events(caplog) == ['job removed']
        assert lines(caplog)[0]['method'] == 'Quiet.beat'

    def test_a_job_may_be_removed_on_purpose(self, caplog):
        class Quiet(Nodes):
            beat = None

        assert list(Quiet(None).jobs) == ['poll']
        assert not events(caplog)

    def test_a_host_may_use_any_name_for_its_own_attributes(self):
        class Host(Nodes):
            def __init__(self, conf):
                super().__init__(conf)
                self.clock = self._jobs = self._handlers = 'of the host'

            def _run(self):
                raise AssertionError('the host calls it, nobody else')

            _add = _job = _take_due = _run

        tasks = Host(None)
        assert list(tasks.jobs) == ['beat', 'poll']
        assert tasks.handler('beat')('c') == ('beat', tasks, 'c')
        assert tasks.run_periodic_tasks(None) > 0

    def test_mixins_bring_their_jobs(self):
        class Mixin:
            @periodic_task(spacing=7)
            def mixed(self, context):
                pass

        class Tasks(Mixin, Nodes):
            pass

        assert list(Tasks(None).jobs) == ['beat', 'poll', 'mixed']

    def test_an_override_may_list_the_objects_of_an_inherited_job(self):
        class Other(Nodes):
            def list_nodes(self, context):
                return ['other']

        assert Other(None).catalogue('poll')(None) == ['other']

    def test_two_jobs_of_one_name_are_refused_with_both_places(self):
        first = here(4)
        second = here(7)

        class Tasks(PeriodicTasks):
            @periodic_task(name='resize')
            def one(self, context):
                pass

            @periodic_task(name='resize')
            def two(self, context):
                pass

        with pytest.raises(JobNameTaken) as refused:
            Tasks(None)
        assert f"'resize' is defined twice, in {first} and {second};" in str(
            refused.value
        )

    def test_a_catalogue_that_does_not_exist_is_refused(self):
        class Tasks(PeriodicTasks):
            def list_nodes(self, context):
                pass

            @periodic_task(objects='list_node')
            def poll(self, context, node_id):
                pass

        with pytest.raises(InvalidJob) as refused:
            Tasks(None)
        text = str(refused.value)
        assert text.startswith('test_periodic.py:')
        assert (
            "job 'poll': objects='list_node' names no method of Tasks; did "
            "you mean 'list_nodes'?"
        ) in text

    def test_a_catalogue_that_is_no_method_or_is_awaited_is_refused(self):
        class Value(PeriodicTasks):
            nodes = ('node-1',)

            @periodic_task(objects='nodes')
            def poll(self, context, node_id):
                pass

        with pytest.raises(InvalidJob, match='names no method of Value'):
            Value(None)

        class Coroutine(PeriodicTasks):
            async def nodes(self, context):
                pass

            @periodic_task(objects='nodes')
            def poll(self, context, node_id):
                pass

        with pytest.raises(InvalidJob, match='methods are not awaited'):
            Coroutine(None)

    @pytest.mark.parametrize('name', ['jobs', 'handler', 'catalogue'])
    def test_a_method_that_hides_one_of_ours_is_refused(self, name):
        cls = type('Tasks', (PeriodicTasks,), {name: lambda self, c: []})
        with pytest.raises(InvalidJob, match=f'Tasks.{name} overrides'):
            cls(None)

    def test_a_constructor_without_a_call_of_ours_is_refused_with_the_remedy(
            self):
        class Forgetful(Nodes):
            def __init__(self):
                pass

        tasks = Forgetful()
        for use in (
            lambda: tasks.jobs,
            lambda: tasks.handler('beat'),
            lambda: tasks.catalogue('beat'),
            lambda: tasks.run_periodic_tasks(None),
            lambda: tasks.add_periodic_task(Nodes.beat),
        ):
            with pytest.raises(
                InvalidJob, match=r'call super\(\).__init__\(conf\) first'
            ):
                use()

    def test_an_unknown_job_is_refused_with_the_known_ones(self):
        with pytest.raises(
            InvalidJob, match="Nodes has no job 'pol'; its jobs are beat, poll"
        ):
            Nodes(None).handler('pol')
        with pytest.raises(InvalidJob, match='its jobs are none'):
            PeriodicTasks(None).catalogue('x')

    def test_attributes_that_answer_to_everything_are_no_jobs(self):
        class Eager:
            def __getattr__(self, name):
                return self

        class Tasks(PeriodicTasks):
            client = Eager()

        assert not Tasks(None).jobs

    def test_it_may_be_pickled_for_a_spawned_worker(self):
        copy = pickle.loads(pickle.dumps(Later(None)))  # noqa: S301
        assert copy.jobs == Later(None).jobs
        assert copy.handler('beat')(None) == 'later'
        assert copy.handler('beat').__self__ is copy


class TestAddPeriodicTask:
    def test_a_function_is_called_with_the_instance_as_in_oslo(self):
        @periodic_task(spacing=5)
        def extra(self, context):
            return (self, context)

        tasks = Nodes(None)
        assert tasks.add_periodic_task(extra) is None
        assert tasks.handler('extra')('c') == (tasks, 'c')
        assert 'extra' not in Nodes(None).jobs

    def test_a_method_of_another_object_stays_its_own(self):
        class Other:
            @periodic_task(spacing=5)
            def extra(self, context):
                return self

        other = Other()
        tasks = PeriodicTasks(None)
        tasks.add_periodic_task(other.extra)
        assert tasks.handler('extra')(None) is other

    def test_an_undecorated_function_is_refused(self):
        place = here(2)

        def extra(self, context):
            pass

        with pytest.raises(InvalidJob) as refused:
            Nodes(None).add_periodic_task(extra)
        assert str(refused.value).startswith(place)
        assert 'decorate it with periodic_task' in str(refused.value)

    def test_a_taken_name_is_refused(self):
        with pytest.raises(JobNameTaken):
            Nodes(None).add_periodic_task(Later.beat)


class TestSettings:
    """The values of jobs that come from the options of a service."""

    class Polled(PeriodicTasks):
        def __init__(self, conf=None):
            if conf is not None:
                conf.register_opts([
                    cfg.FloatOpt('every', default=30.0),
                    cfg.StrOpt('when', default='0 2 * * *'),
                    cfg.StrOpt('zone', default='Europe/Berlin'),
                    cfg.IntOpt('tries', default=2),
                    cfg.FloatOpt('limit'),
                    cfg.BoolOpt('nightly', default=True),
                ], 'nodewatch')
            super().__init__(conf)

        def nodes(self, context):
            return ['node-1']

        @periodic_task(
            spacing=lambda conf: conf.nodewatch.every, objects='nodes',
            retries=lambda conf: conf.nodewatch.tries,
            timeout=lambda conf: conf.nodewatch.limit,
            misfire='all')
        def poll(self, context, node):
            pass

        @periodic_task(
            cron=lambda conf: conf.nodewatch.when,
            timezone=lambda conf: conf.nodewatch.zone,
            enabled=lambda conf: conf.nodewatch.nightly)
        def sweep(self, context):
            pass

    def jobs(self, tmp_path, text=''):
        return self.Polled(configured(tmp_path, '[nodewatch]\n' + text)).jobs

    def test_a_schedule_comes_from_an_option(self, tmp_path):
        jobs = self.jobs(tmp_path, 'every = 5\ntries = 7\nnightly = no\n'
                         'when = 30 4 * * *\nzone = Asia/Kolkata')
        poll, sweep = jobs['poll'], jobs['sweep']
        assert (poll.schedule, poll.retries) == (Every(5), 7)
        assert poll.misfire is Misfire.ALL
        assert poll.scope is Scope.OBJECTS
        assert sweep.schedule == Cron('30 4 * * *', 'Asia/Kolkata')
        assert not sweep.enabled

    def test_an_option_that_is_not_set_has_its_default(self, tmp_path):
        jobs = self.jobs(tmp_path)
        assert jobs['poll'].schedule == Every(30)
        assert (jobs['poll'].retries, jobs['poll'].timeout) == (2, None)
        assert jobs['sweep'].schedule == Cron('0 2 * * *', 'Europe/Berlin')
        assert jobs['sweep'].enabled

    def test_each_instance_has_the_values_of_its_own_configuration(
            self, tmp_path):
        quick = self.jobs(tmp_path, 'every = 1')
        slow = self.jobs(tmp_path, 'every = 100')
        assert quick['poll'].schedule == Every(1)
        assert slow['poll'].schedule == Every(100)
        assert self.jobs(tmp_path)['poll'].schedule == Every(30)

    @pytest.mark.parametrize('spacing', [-1, -1.0, lambda conf: -1])
    def test_minus_one_turns_a_job_off_as_in_oslo_service(self, spacing):
        class Tasks(PeriodicTasks):
            @periodic_task(spacing=spacing)
            def poll(self, context):
                pass

        assert not Tasks(None).jobs['poll'].enabled
        assert Tasks(None).jobs['poll'].schedule == Every(60)

    @pytest.mark.parametrize(('text', 'error', 'says'), [
        ('every = 0', InvalidSchedule, 'spacing is 0.0; give'),
        ('every = -7', InvalidSchedule, 'spacing is -7.0; give'),
        ('when = 61 * * * *', InvalidSchedule, "minute '61'"),
        ('zone = Europe/Berln', InvalidSchedule, 'did you mean'),
        ('tries = -2', InvalidJob, 'retries is -2; give'),
        ('tries = two', InvalidJob, 'the function of retries= raised'),
    ])
    def test_a_bad_value_is_refused_with_the_place_of_the_job(
            self, tmp_path, text, error, says):
        with pytest.raises(error) as refused:
            self.jobs(tmp_path, text)
        assert re.match(r"test_periodic.py:\d+: job '(poll|sweep)': ",
                        str(refused.value))
        assert says in str(refused.value)
        assert '\n' not in str(refused.value)

    def test_a_value_that_is_no_option_is_checked_at_the_import(self):
        with pytest.raises(InvalidJob, match='timeout is -1'):
            @periodic_task(spacing=lambda conf: conf.every, timeout=-1)
            def poll(self, context):
                pass

    def test_an_unregistered_option_is_named_with_the_remedy(self):
        class Tasks(PeriodicTasks):
            @periodic_task(spacing=lambda conf: conf.nodewatch.every)
            def poll(self, context):
                pass

        with pytest.raises(InvalidJob, match='nodewatch.*register its opt'):
            Tasks(cfg.ConfigOpts())
        with pytest.raises(InvalidJob, match='without a configuration'):
            Tasks()

    def test_a_function_that_is_added_has_the_options_too(self, tmp_path):
        @periodic_task(spacing=lambda conf: conf.nodewatch.every)
        def extra(self, context):
            pass

        tasks = self.Polled(configured(tmp_path, '[nodewatch]\nevery = 3'))
        tasks.add_periodic_task(extra)
        assert tasks.jobs['extra'].schedule == Every(3)


class TestOsloTasks:
    def test_their_methods_are_jobs_of_member_scope(self):
        class Tasks(PeriodicTasks):
            @oslo_task(spacing=30, name='sync', immediate=True)
            def sync_all(self, context):
                return (self, context)

        tasks = Tasks(None)
        job = tasks.jobs['sync']
        assert job.schedule == Every(30)
        assert job.scope is Scope.MEMBER
        assert job.run_immediately
        assert job.enabled
        assert job.defined_at.startswith('test_periodic.py:')
        assert tasks.handler('sync')('c') == (tasks, 'c')

    def test_a_spacing_of_zero_is_the_default_and_a_negative_one_is_off(self):
        class Tasks(PeriodicTasks):
            @oslo_task()
            def default(self, context):
                pass

            @oslo_task(spacing=-1)
            def negative(self, context):
                pass

            @oslo_task(enabled=False)
            def disabled(self, context):
                pass

        jobs = Tasks(None).jobs
        assert jobs['default'].schedule == Every(60)
        assert jobs['default'].enabled
        assert not jobs['negative'].enabled
        assert not jobs['disabled'].enabled

    def test_external_ones_obey_the_option_that_oslo_registers(self):
        class Tasks(PeriodicTasks):
            @oslo_task(external_ok=True)
            def external(self, context):
                pass

        off = types.SimpleNamespace(run_external_periodic_tasks=False)
        assert not Tasks(off).jobs['external'].enabled
        assert Tasks(types.SimpleNamespace()).jobs['external'].enabled
        assert Tasks(None).jobs['external'].enabled

    @pytest.mark.parametrize('run_here', [True, False])
    def test_external_ones_obey_the_file_of_the_host(self, tmp_path, run_here):
        """Nothing but the base class of oslo.service registers the option."""
        class Tasks(PeriodicTasks):
            @oslo_task(external_ok=True)
            def external(self, context):
                pass

            @oslo_task()
            def internal(self, context):
                pass

        jobs = Tasks(configured(
            tmp_path, '[DEFAULT]\n'
            f'run_external_periodic_tasks = {run_here}')).jobs
        assert jobs['external'].enabled is run_here
        assert jobs['internal'].enabled

    def test_oslo_service_may_register_the_option_as_well(self, tmp_path):
        from oslo_service import periodic_task as oslo

        class Tasks(PeriodicTasks):
            @oslo_task(external_ok=True)
            def external(self, context):
                pass

        conf = configured(tmp_path, '')
        assert Tasks(conf).jobs['external'].enabled
        oslo.PeriodicTasks(conf)
        assert Tasks(conf).jobs['external'].enabled

    def test_a_mixin_brings_no_task_that_oslo_service_would_not_run(
            self, caplog):
        class Mixin:
            @oslo_task()
            def mixed(self, context):
                pass

        class Tasks(Mixin, Nodes):
            @oslo_task()
            def own(self, context):
                pass

        assert list(Tasks(None).jobs) == ['beat', 'poll', 'own']
        assert events(caplog) == ['task of a mixin ignored']
        assert lines(caplog)[0]['method'] == 'Mixin.mixed'

    def test_a_bad_spacing_names_its_place(self):
        class Tasks(PeriodicTasks):
            @oslo_task(spacing=1e-9)
            def quick(self, context):
                pass

        with pytest.raises(
            InvalidSchedule,
            match=r"test_periodic.py:\d+: job 'quick': spacing is 1e-09",
        ):
            Tasks(None)

    def test_the_real_decorator_leaves_the_attributes_that_are_read_here(self):
        """oslo.service fixes its backend when it is imported, so the test runs
        in a process of its own.
        """
        outcome = run_python(
            'from oslo_service import backend\n'
            'backend.init_backend(backend.BackendType.THREADING)\n'
            'from oslo_service import periodic_task as oslo\n'
            'from distperiodic.periodic import PeriodicTasks\n'
            'class Tasks(PeriodicTasks):\n'
            '    @oslo.periodic_task\n'
            '    def bare(self, context): pass\n'
            '    @oslo.periodic_task(spacing=7, run_immediately=True,\n'
            '                        name="other", enabled=True)\n'
            '    def full(self, context): pass\n'
            '    @oslo.periodic_task(spacing=-1)\n'
            '    def off(self, context): pass\n'
            'for job in Tasks(None).jobs.values():\n'
            '    print(job.name, job.schedule.describe(),\n'
            '          job.enabled, job.run_immediately)\n'
        )
        assert outcome.splitlines() == [
            'bare every 60 s True False',
            'other every 7 s True True',
            'off every 60 s False False',
        ]


def run_python(code):
    return subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', code],
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
    ).stdout


def test_importing_it_imports_no_oslo_library():
    loaded = run_python(
        'import sys\n'
        'from distperiodic.periodic import PeriodicTasks, periodic_task\n'
        'print(*sorted({name.partition(".")[0] for name in sys.modules}))\n'
    ).split()
    assert 'distperiodic' in loaded
    assert not {'oslo_service', 'oslo_messaging', 'eventlet'} & set(loaded)


def at(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def driven(cls, seconds):
    tasks = cls(None)
    tasks.periodic_clock = FrozenClock(at(seconds))
    tasks.ran = []
    return tasks


class Driven(PeriodicTasks):
    @periodic_task(spacing=10)
    def ten(self, context):
        self.ran.append(('ten', self.periodic_clock.time.timestamp()))

    @periodic_task(spacing=25)
    def other(self, context):
        self.ran.append(('other', self.periodic_clock.time.timestamp()))


class TestRunPeriodicTasks:
    def test_tasks_run_at_the_ticks_of_the_grid_and_never_drift(self):
        tasks = driven(Driven, 1003)
        while tasks.periodic_clock.time < at(1060):
            # The caller always wakes up slightly late.
            tasks.periodic_clock.advance(tasks.run_periodic_tasks(None) + 0.25)
        assert [
            (name, int(seconds)) for name, seconds in tasks.ran
        ] == [
            ('ten', 1010),
            ('ten', 1020),
            ('other', 1025),
            ('ten', 1030),
            ('ten', 1040),
            ('ten', 1050),
            ('other', 1050),
        ]

    def test_it_returns_the_seconds_to_the_next_tick(self):
        tasks = driven(Driven, 1003)
        assert tasks.run_periodic_tasks(None) == 7
        tasks.periodic_clock.set(at(1024.5))
        assert tasks.run_periodic_tasks(None) == 0.5

    def test_it_never_lets_its_caller_sleep_for_more_than_a_minute(self):
        class Rare(PeriodicTasks):
            @periodic_task(cron='@yearly')
            def rare(self, context):
                pass

        assert driven(Rare, 1000).run_periodic_tasks(None) == 60
        assert PeriodicTasks(None).run_periodic_tasks(None) == 60

    def test_the_context_is_passed_on_as_it_is(self):
        class Tasks(PeriodicTasks):
            @periodic_task(spacing=1, run_immediately=True)
            def keep(self, context):
                self.ran.append(context)

        tasks = driven(Tasks, 1000)
        context = object()
        tasks.run_periodic_tasks(context)
        assert tasks.ran == [context]

    def test_run_immediately_runs_at_the_first_call_then_on_the_grid(self):
        class Tasks(PeriodicTasks):
            @periodic_task(spacing=10, run_immediately=True)
            def now(self, context):
                self.ran.append(self.periodic_clock.time.timestamp())

        tasks = driven(Tasks, 1003)
        for seconds in (1003, 1004, 1009, 1010, 1011):
            tasks.periodic_clock.set(at(seconds))
            tasks.run_periodic_tasks(None)
        assert tasks.ran == [1003, 1010]

    def test_a_failing_task_is_logged_and_the_others_go_on(self, caplog):
        class Failing(Driven):
            @periodic_task(spacing=10)
            def ten(self, context):
                raise RuntimeError('no route to host')

        tasks = driven(Failing, 1003)
        tasks.run_periodic_tasks(None)
        tasks.periodic_clock.set(at(1050))
        idle = tasks.run_periodic_tasks(None)
        assert tasks.ran == [('other', 1050)]
        assert idle == 10
        [line] = [one for one in lines(caplog) if one.level == 'ERROR']
        assert line.event == 'task failed'
        assert line == {'job': 'ten', 'tick': '1970-01-01T00:17:30+00:00'}
        assert str(line.error) == 'no route to host'

    def test_raise_on_error_raises_and_loses_no_other_task(self):
        class Failing(Driven):
            @periodic_task(spacing=10)
            def ten(self, context):
                raise RuntimeError('no route to host')

        tasks = driven(Failing, 1003)
        tasks.run_periodic_tasks(None, raise_on_error=True)
        tasks.periodic_clock.set(at(1050))
        with pytest.raises(RuntimeError, match='no route'):
            tasks.run_periodic_tasks(None, raise_on_error=True)
        assert tasks.ran == []
        # The failed tick is settled, so the next call continues after it.
        tasks.run_periodic_tasks(None, raise_on_error=True)
        assert tasks.ran == [('other', 1050)]

    def test_raise_on_error_loses_no_other_tick_of_the_task(self):
        class Failing(Driven):
            @periodic_task(spacing=10, misfire='all')
            def ten(self, context):
                self.ran.append(('ten', context))
                raise RuntimeError('no route to host')

        tasks = driven(Failing, 1003)
        tasks.run_periodic_tasks(None, raise_on_error=True)
        tasks.periodic_clock.set(at(1033))
        for number in range(3):
            with pytest.raises(RuntimeError, match='no route'):
                tasks.run_periodic_tasks(number, raise_on_error=True)
        tasks.run_periodic_tasks(3, raise_on_error=True)

        assert [one for one in tasks.ran if one[0] == 'ten'] == [
            ('ten', 0), ('ten', 1), ('ten', 2)]

    def test_an_interrupt_is_not_taken_for_a_failing_task(self):
        class Stopping(PeriodicTasks):
            @periodic_task(spacing=1, run_immediately=True)
            def stop(self, context):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            driven(Stopping, 1000).run_periodic_tasks(None)

    def test_a_task_that_is_due_behind_a_slow_task_runs_in_the_same_call(self):
        class Slow(Driven):
            @periodic_task(spacing=10)
            def ten(self, context):
                super().ten(context)
                self.periodic_clock.advance(6)

        tasks = driven(Slow, 1003)
        tasks.run_periodic_tasks(None)
        tasks.periodic_clock.set(at(1020))
        idle = tasks.run_periodic_tasks(None)
        assert tasks.ran == [('ten', 1020), ('other', 1026)]
        assert idle == 4

    def test_a_task_slower_than_its_spacing_is_due_again_at_once(self):
        class Slow(PeriodicTasks):
            @periodic_task(spacing=10)
            def slow(self, context):
                self.periodic_clock.advance(12)

        tasks = driven(Slow, 1003)
        tasks.run_periodic_tasks(None)
        tasks.periodic_clock.set(at(1010))
        assert tasks.run_periodic_tasks(None) == 0

    @pytest.mark.parametrize(
        ('misfire', 'ran', 'dropped'),
        [('latest', 1, 2), ('all', 3, 0), ('skip', 0, 3)],
    )
    def test_missed_ticks_follow_the_policy(
        self, misfire, ran, dropped, caplog
    ):
        class Tasks(PeriodicTasks):
            @periodic_task(spacing=10, misfire=misfire, grace=1)
            def ten(self, context):
                self.ran.append(self.periodic_clock.time.timestamp())

        tasks = driven(Tasks, 1003)
        tasks.run_periodic_tasks(None)
        tasks.periodic_clock.set(at(1035))
        tasks.run_periodic_tasks(None)
        assert len(tasks.ran) == ran
        assert [line['dropped'] for line in lines(caplog)] == (
            [str(dropped)] if dropped else []
        )
        tasks.periodic_clock.set(at(1040))
        tasks.run_periodic_tasks(None)
        assert len(tasks.ran) == ran + 1

    def test_a_clock_set_back_a_little_repeats_no_tick(self):
        tasks = driven(Driven, 1003)
        tasks.run_periodic_tasks(None)
        for seconds in (1010.001, 1009.9, 1010.002, 1011):
            tasks.periodic_clock.set(at(seconds))
            tasks.run_periodic_tasks(None)
        assert tasks.ran == [('ten', 1010.001)]

    def test_a_clock_set_back_by_hours_does_not_silence_a_task(self, caplog):
        tasks = driven(Driven, 90_003)
        tasks.run_periodic_tasks(None)
        tasks.periodic_clock.set(at(1003))
        assert tasks.run_periodic_tasks(None) == 7
        assert [line['job'] for line in lines(caplog, 'clock set back')
                ] == ['ten', 'other']
        tasks.periodic_clock.set(at(1010))
        tasks.run_periodic_tasks(None)
        assert tasks.ran == [('ten', 1010)]

    def test_disabled_jobs_do_not_run(self):
        class Tasks(PeriodicTasks):
            @periodic_task(spacing=1, enabled=False, run_immediately=True)
            def off(self, context):
                self.ran.append('off')

            @oslo_task(spacing=-1, immediate=True)
            def negative(self, context):
                self.ran.append('negative')

        tasks = driven(Tasks, 1000)
        assert tasks.run_periodic_tasks(None) == 60
        assert tasks.ran == []

    def test_jobs_of_the_group_are_left_out_and_logged_once(self, caplog):
        class Tasks(Nodes):
            @periodic_task(spacing=1, scope='group', run_immediately=True)
            def once(self, context):
                self.ran.append('once')

        tasks = driven(Tasks, 1000)
        for seconds in range(1000, 1005):
            tasks.periodic_clock.set(at(seconds))
            assert tasks.run_periodic_tasks(None) > 1
        assert tasks.ran == []
        assert events(caplog) == 2 * ['job not run here']
        assert lines(caplog) == [
            {'job': 'poll', 'scope': 'objects'},
            {'job': 'once', 'scope': 'group'},
        ]

    @pytest.mark.parametrize('ending', [SystemExit, GeneratorExit])
    def test_a_task_that_exits_does_not_end_the_loop(self, caplog, ending):
        class Tasks(PeriodicTasks):
            @periodic_task(spacing=1, run_immediately=True)
            def leaves(self, context):
                raise ending(3)

            @periodic_task(spacing=1, run_immediately=True)
            def stays(self, context):
                self.ran.append('stays')

        tasks = driven(Tasks, 1000)
        tasks.run_periodic_tasks(None)
        assert tasks.ran == ['stays']
        assert events(caplog) == ['task failed']

    def test_ctrl_c_does(self):
        class Tasks(PeriodicTasks):
            @periodic_task(spacing=1, run_immediately=True)
            def interrupted(self, context):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            driven(Tasks, 1000).run_periodic_tasks(None)

    @pytest.mark.parametrize('raises', [True, False])
    def test_due_tasks_may_run_at_the_same_time(self, raises):
        class Tasks(PeriodicTasks):
            @periodic_task(spacing=10, run_immediately=True)
            def one(self, context):
                context.wait(20)

            @periodic_task(spacing=10, run_immediately=True)
            def two(self, context):
                context.wait(20)
                raise ValueError('after the meeting')

            @periodic_task(spacing=10)
            def later(self, context):
                raise AssertionError('not due')

        tasks = driven(Tasks, 1001)
        meeting = threading.Barrier(2)
        if raises:
            with pytest.raises(ValueError, match='after the meeting'):
                tasks.run_periodic_tasks_in_parallel(meeting, True)
        else:
            assert tasks.run_periodic_tasks_in_parallel(meeting) == 9
        assert not meeting.broken

    def test_a_task_added_later_runs_too(self):
        @periodic_task(spacing=5)
        def extra(self, context):
            self.ran.append('extra')

        tasks = driven(PeriodicTasks, 1001)
        tasks.run_periodic_tasks(None)
        tasks.add_periodic_task(extra)
        tasks.run_periodic_tasks(None)
        tasks.periodic_clock.set(at(1005))
        tasks.run_periodic_tasks(None)
        assert tasks.ran == ['extra']


class Sessions(PeriodicTasks):
    """A host whose context has an end."""

    def __init__(self, conf=None):
        super().__init__(conf)
        self.seen = []

    def make_context(self, context):
        self.seen.append('open')
        return {'run': context}

    def close_context(self, made):
        self.seen.append(f'close {made["run"]}')

    def nodes(self, context):
        for node in 'ab':
            self.seen.append(node)
            yield node

    def lists(self, context):
        self.seen.append('listed')
        return ['a', 'b']

    @periodic_task(objects='nodes')
    def poll(self, context, node):
        self.seen.append(node)
        return iter([1])

    @periodic_task(objects='lists')
    def fail(self, context, node):
        raise ValueError(node)

    @command('mysql', 'init')
    def init(self, context, parameters):
        return {'Port': 1}


def test_a_context_ends_with_its_run():
    tasks = Sessions()

    assert list(tasks.handler('poll')('c', 'n')) == [1]
    assert tasks.seen == ['open', 'n', 'close c']
    assert tasks.handler('task:mysql.init')('d', {}) == {'Port': 1}
    assert tasks.seen[3:] == ['open', 'close d']


def test_a_context_ends_with_a_run_that_fails():
    tasks = Sessions()

    with pytest.raises(ValueError, match='n'):
        tasks.handler('fail')('c', 'n')

    assert tasks.seen == ['open', 'close c']


def test_a_context_lasts_until_its_catalogue_is_read():
    tasks = Sessions()

    assert list(tasks.catalogue('poll')('c')) == ['a', 'b']
    assert tasks.seen == ['open', 'a', 'b', 'close c']
    assert tasks.catalogue('fail')('d') == ['a', 'b']
    assert tasks.seen[4:] == ['open', 'listed', 'close d']


def test_a_context_that_cannot_be_closed_fails_the_run():
    class Broken(Sessions):
        def close_context(self, made):
            raise OSError('gone')

    with pytest.raises(OSError, match='gone'):
        Broken().handler('poll')('c', 'n')


def test_a_class_may_hand_its_methods_a_context_of_its_own():
    given = []

    class Tasks(PeriodicTasks):

        def make_context(self, context):
            return {'user': 'admin', 'run': context}

        def nodes(self, context, arcs):
            given.append((context, arcs))
            return []

        @periodic_task(spacing=60, objects='nodes', name='poll')
        def poll(self, context, node):
            given.append((context, node))

    tasks = Tasks()
    tasks.handler('poll')('of a run', 'node-1')
    tasks.catalogue('poll')('of a read', 'arcs')

    assert given == [
        ({'user': 'admin', 'run': 'of a run'}, 'node-1'),
        ({'user': 'admin', 'run': 'of a read'}, 'arcs')]
    # The reader checks whether the method accepts arcs.
    assert 'arcs' in inspect.signature(tasks.catalogue('poll')).parameters
