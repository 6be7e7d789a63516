// SPDX-License-Identifier: Apache-2.0
// Show how long ago an instant is, and load the page again with ?poll=SECONDS.
// Without this script the page shows the instants, and stays as it is.
'use strict';

const UNITS = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];

function age(seconds) {
  const length = Math.abs(seconds);
  if (length < 1) {
    return 'now';
  }
  const [unit, size] = UNITS.find(([, size]) => length >= size);
  const text = `${Math.floor(length / size)} ${unit}`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

function showAges() {
  for (const time of document.querySelectorAll('time')) {
    const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
    if (!Number.isNaN(seconds)) {
      time.textContent = age(seconds);
    }
  }
}

async function reload() {
  const answer = await fetch(location.href, {cache: 'no-store'});
  const found = new DOMParser().parseFromString(
    await answer.text(), 'text/html').querySelector('main');
  if (found) {
    document.querySelector('main').replaceWith(found);
  }
}

function poll() {
  const mark = document.getElementById('poll');
  const seconds = mark ? Math.max(2, Number(mark.dataset.seconds) || 10) : 0;
  if (!seconds) {
    return;
  }
  let wait = seconds;
  let loading = false;
  setInterval(async () => {
    if (document.hidden || loading) {
      return;
    }
    wait -= 1;
    if (wait > 0) {
      mark.textContent = `next in ${wait} s`;
      return;
    }
    loading = true;
    try {
      await reload();
      mark.textContent = '';
    } catch (error) {
      mark.textContent = 'the server of this page does not answer';
    }
    showAges();
    loading = false;
    wait = seconds;
  }, 1000);
}

showAges();
setInterval(showAges, 5000);
poll();
