# SPDX-License-Identifier: Apache-2.0
"""The valid settings of a job, and the errors about invalid settings."""

import collections
import dataclasses
import pickle
import types

import pytest

from distperiodic.core.cron import Cron
from distperiodic.core.job import Delivery
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.job import check_ended
from distperiodic.core.job import own_schedule
from distperiodic.core.job import schedule_named
from distperiodic.core.job import schedule_of
from distperiodic.core.job import text_of
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Every
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import Overlap
from distperiodic.exceptions import InvalidJob
from distperiodic.exceptions import InvalidSchedule


def poll(**options):
    return Job(
        'poll', Every(60), defined_at='nodes.py:41', **options
    )


class TestJob:
    def test_an_unadorned_job_runs_on_every_member_and_never_retries(self):
        job = poll()
        assert job.scope is Scope.MEMBER
        assert job.misfire is Misfire.LATEST
        assert job.overlap is Overlap.SKIP
        assert job.delivery is Delivery.AT_LEAST_ONCE
        assert (job.retries, job.timeout, job.priority) == (0, None, 0)
        assert (job.topic, job.max_in_flight) == ('default', None)
        assert job.enabled
        assert not job.run_immediately
        assert not job.spread

    def test_words_given_as_text_become_members_of_their_enum(self):
        job = poll(
            scope='objects',
            objects='list_nodes',
            misfire='all',
            overlap='wait',
            delivery='at_most_once',
        )
        assert job.scope is Scope.OBJECTS
        assert job.misfire is Misfire.ALL
        assert job.overlap is Overlap.WAIT
        assert job.delivery is Delivery.AT_MOST_ONCE
        assert f'{job.misfire}' == 'all'

    @pytest.mark.parametrize(
        ('option', 'value', 'remedy'),
        [
            ('scope', 'grp', 'give one of member, group, objects'),
            ('misfire', 'lates', 'give one of skip, latest, all'),
            ('misfire', None, 'give one of skip, latest, all'),
            ('misfire', [], 'give one of skip, latest, all'),
            ('overlap', 'queue', 'give one of skip, wait'),
            ('delivery', 'exactly_once', 'at_least_once, at_most_once'),
            ('objects', 5, "objects='list_nodes'"),
            ('objects', 'list nodes', "objects='list_nodes'"),
            ('objects', '', "objects='list_nodes'"),
            ('spread', 'yes', 'give a bool'),
            ('enabled', 1, 'give a bool'),
            ('run_immediately', None, 'give a bool'),
            ('retries', -1, 'whole number from 0'),
            ('retries', 1.5, 'whole number from 0'),
            ('retries', True, 'whole number from 0'),
            ('retries', None, 'whole number from 0'),
            ('retry_backoff', 0, 'seconds > 0'),
            ('timeout', 0, 'seconds > 0, or None'),
            ('timeout', -5, 'seconds > 0, or None'),
            ('timeout', float('nan'), 'seconds > 0, or None'),
            ('timeout', '5', 'seconds > 0, or None'),
            pytest.param(
                'timeout', 10**400, 'seconds > 0, or None', id='timeout-huge'
            ),
            ('priority', 'high', 'a whole number'),
            ('topic', '', '1 to 100 characters'),
            ('topic', 'a b', '1 to 100 characters'),
            ('topic', 'x\n', '1 to 100 characters'),
            ('topic', None, '1 to 100 characters'),
            ('max_in_flight', 0, 'whole number from 1'),
            ('grace', -1, 'seconds from 0, or None'),
        ],
    )
    def test_an_illegal_value_is_refused_in_one_line(
        self, option, value, remedy
    ):
        with pytest.raises(InvalidJob) as refused:
            poll(**{option: value})
        text = str(refused.value)
        assert text.startswith(
            f"nodes.py:41: job 'poll': {option} is {value!r}; give "
        )
        assert remedy in text
        assert '\n' not in text

    @pytest.mark.parametrize('name', ['', 'a\nb', 'x' * 201, None, 5])
    def test_a_name_that_no_log_line_could_show_is_refused(self, name):
        with pytest.raises(InvalidJob, match='job name is'):
            Job(name, Every(60))

    @pytest.mark.parametrize(
        'options',
        [
            {'scope': 'group', 'objects': 'list_nodes'},
            {'scope': 'member', 'objects': 'list_nodes'},
            {'scope': 'objects'},
        ],
    )
    def test_a_scope_that_contradicts_the_objects_is_refused(self, options):
        with pytest.raises(InvalidJob, match='contradicts objects='):
            poll(**options)

    def test_without_a_grace_a_tick_may_be_a_period_or_a_minute_late(self):
        """If the grace were a day, 'skip' could run the tick of 2:00 at 8:00.
        """
        daily = Job(name='report', schedule=Cron('@daily'))
        quick = Job(name='poll', schedule=Every(5))
        assert daily.plan().grace_us(0) == 60 * SECOND
        assert quick.plan().grace_us(0) == 5 * SECOND

    def test_a_grace_is_seconds_and_may_be_none_at_all(self):
        assert poll(grace=2.5).plan().grace_us(0) == 2_500_000
        assert poll(grace=0).plan().grace_us(0) == 0

    @pytest.mark.parametrize(('retries', 'attempts'), [
        (0, []), (1, [1]), (3, [1, 2, 3])])
    def test_a_run_that_fails_has_as_many_more_as_its_retries(
        self, retries, attempts
    ):
        job = poll(retries=retries)
        assert [n for n in range(1, 9) if job.tries_again(n)] == attempts

    def test_a_run_that_may_run_at_most_once_has_no_other(self):
        assert not poll(retries=3, delivery='at_most_once').tries_again(1)

    def test_a_spread_is_a_part_of_the_recorded_schedule(self):
        assert poll().schedule_text() != poll(spread=True).schedule_text()

    def test_a_job_is_a_value(self):
        assert poll(retries=3) == poll(retries=3)
        assert hash(poll()) == hash(poll())
        assert pickle.loads(pickle.dumps(poll())) == poll()  # noqa: S301
        with pytest.raises(dataclasses.FrozenInstanceError):
            poll().retries = 5

    def test_a_changed_copy_is_checked_like_the_first(self):
        with pytest.raises(InvalidJob, match='retries is -1'):
            dataclasses.replace(poll(), retries=-1)


def thing(**attributes):
    return types.SimpleNamespace(id='node-7', **attributes)


class TestOwnSchedule:
    @pytest.mark.parametrize(
        'obj',
        [
            'node-7',
            7,
            thing(),
            thing(spacing=None, cron=None, timezone='Europe/Berlin'),
        ],
    )
    def test_most_objects_have_none(self, obj):
        assert own_schedule(obj) is None

    def test_an_object_may_carry_a_spacing(self):
        assert own_schedule(thing(spacing=5)) == Every(5)

    def test_an_object_may_carry_a_cron_line_with_or_without_a_zone(self):
        assert own_schedule(thing(cron='@daily')) == Cron('@daily')
        assert own_schedule(
            thing(cron='@daily', timezone='Asia/Kolkata')
        ) == Cron('@daily', 'Asia/Kolkata')

    def test_objects_of_one_rule_share_one_schedule(self):
        node = collections.namedtuple('node', 'id spacing')
        first, second = (own_schedule(node(i, 0.5)) for i in range(2))
        assert first is second

    @pytest.mark.parametrize(
        ('attributes', 'says'),
        [
            ({'spacing': 0}, 'spacing is 0'),
            ({'spacing': '60'}, "spacing is '60'"),
            ({'spacing': True}, 'spacing is True'),
            ({'spacing': [1]}, r'spacing is \[1\]'),
            ({'cron': '61 * * * *'}, "minute '61'"),
            ({'cron': ['@daily']}, 'not text'),
            ({'cron': '@daily', 'timezone': 'Mars'}, "'Mars' is unknown"),
            ({'cron': '@daily', 'timezone': ['UTC']}, 'is unknown'),
            ({'spacing': 5, 'cron': '@daily'}, 'both given'),
            ({'spacing': 5, 'timezone': 'Asia/Kolkata'}, 'without cron='),
        ],
    )
    def test_a_bad_one_is_refused_with_the_objects_id(self, attributes, says):
        own_schedule(thing(spacing=1.0))  # True must not get its cache entry
        with pytest.raises(
            InvalidSchedule, match=f"^object 'node-7': .*{says}"
        ):
            own_schedule(thing(**attributes))

    def test_an_invalid_schedule_does_not_affect_valid_ones(self):
        with pytest.raises(InvalidSchedule):
            own_schedule(thing(spacing=-1))
        assert own_schedule(thing(spacing=1)) == Every(1)


class TestScheduleOf:
    def test_utc_is_the_zone_of_every_spacing(self):
        assert schedule_of(60, None, 'UTC') == Every(60)

    def test_neither_spacing_nor_cron_is_refused(self):
        with pytest.raises(InvalidSchedule, match='spacing is None'):
            schedule_of(None, None, None)


@pytest.mark.parametrize('schedule', [
    Every(60), Every(0.25), Every(60, 5), Every(86400, 3600.5),
    Cron('0 2 * * MON-FRI'), Cron('*/5 * * * *', 'Europe/Berlin'),
], ids=repr)
def test_a_schedule_is_read_from_its_text_as_it_was(schedule):
    assert schedule_named(text_of(schedule)) == schedule


@pytest.mark.parametrize('text', [
    '', 'never', 'every', 'every day', 'every 1 2 3', 'every 0', 'cron UTC',
    'cron Nowhere/Land * * * * *'])
def test_a_text_that_is_no_schedule_is_refused(text):
    with pytest.raises(InvalidSchedule):
        schedule_named(text)


class _Touchy:
    """An object that raises an error when any attribute is read."""

    def __getattribute__(self, name):
        raise RuntimeError(name)


@pytest.mark.parametrize('make', [int, list, object, _Touchy])
def test_any_return_value_of_a_handler_is_ignored(make):
    check_ended('poll', make())


def test_a_coroutine_is_no_end():
    async def poll():
        pass

    with pytest.raises(InvalidJob, match="job 'poll': the handler returned"):
        check_ended('poll', poll())
