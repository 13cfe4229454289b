// Drives a coordinator with Triton's published node client, as its own services would: every call
// here is one that software written for CNAPI makes. Ends with 0 when all went as it must.
//
// MUSTER_URL, MUSTER_SERVER and MUSTER_IMAGE name the coordinator, a running server, and an image
// that its repository has; MUSTER_MAC is a NIC of the server (or empty).

'use strict';

const assert = require('assert');
const crypto = require('crypto');
const CNAPI = require('sdc-clients').CNAPI;

const url = process.env.MUSTER_URL;
const server = process.env.MUSTER_SERVER;
const image = process.env.MUSTER_IMAGE;
const mac = process.env.MUSTER_MAC;

const cnapi = new CNAPI({ url: url, agent: false, retry: false });

// Calls a method of the client; resolves to what it returns.
function call(method) {
    const args = Array.prototype.slice.call(arguments, 1);
    return new Promise(function (resolve, reject) {
        args.push(function (err, obj) {
            return err ? reject(err) : resolve(obj);
        });
        cnapi[method].apply(cnapi, args);
    });
}

async function refused(code, status) {
    const args = Array.prototype.slice.call(arguments, 2);
    let error = null;
    try {
        await call.apply(null, args);
    } catch (err) {
        error = err;
    }
    assert(error, args[0] + ' must be refused');
    assert.strictEqual(error.restCode || error.body.code, code, String(error));
    assert.strictEqual(error.statusCode, status, String(error));
    return error;
}

function step(name) {
    console.log('sdc-clients: ' + name);
}

// Waits for a task the two ways that clients know; returns its result.
async function finished(answer) {
    assert(answer.id, 'an answer without a task id');
    const waited = await call('waitTask', answer.id, { timeout: 240 });
    assert.strictEqual(waited.status, 'complete', JSON.stringify(waited));
    const polled = await call('pollTask', answer.id, {});
    assert.deepStrictEqual(polled, waited);
    assert.strictEqual(waited.history[0].name, 'finish');
    return waited.history[0].event;
}

async function servers() {
    step('servers');
    const pong = await call('ping');
    assert.strictEqual(pong.ready, true, JSON.stringify(pong));
    const listed = await call('listServers', { extras: 'status,memory' });
    const found = listed.find(function (one) { return one.uuid === server; });
    assert(found, 'the server is not listed');
    assert.strictEqual(found.status, 'running');
    assert(found.last_heartbeat !== undefined);
    assert.strictEqual((await call('listServers', { uuids: server })).length, 1);
    await call('updateServer', server, { comments: 'by sdc-clients', traits: { ssd: true } });
    const record = await call('getServer', server);
    assert.strictEqual(record.comments, 'by sdc-clients');
    assert.deepStrictEqual(record.traits, { ssd: true });
    assert(record.sysinfo['Network Interfaces']);
    await call('updateServer', server, { comments: '', traits: {} });
    await refused('InvalidParameters', 409, 'updateServer', server, { comments: 5 });
    await refused('InvalidArgument', 409, 'getServer', 'no-uuid');
    await refused('ResourceNotFound', 404, 'getServer', crypto.randomUUID());
}

async function boot() {
    step('boot parameters');
    await call('setBootParams', server, { kernel_args: { one: 1, two: 'x' } });
    await call('setBootParams', server, { kernel_args: { two: null } });
    const params = await call('getBootParams', server);
    assert.strictEqual(params.kernel_args.one, 1, JSON.stringify(params));
    assert.strictEqual(params.kernel_args.two, undefined);
    assert.deepStrictEqual(params.boot_modules, []);
    assert(await call('getBootParams', 'default'));
    assert.strictEqual(typeof (await call('listPlatforms')), 'object');
}

async function capacity() {
    step('capacity');
    const answer = await call('capacity', [server]);
    const one = answer.capacities[server];
    assert.deepStrictEqual(Object.keys(one).sort(), ['cpu', 'disk', 'ram'], JSON.stringify(answer));
    assert(one.ram > 0);
    assert(server in (await call('capacity', null)).capacities);
}

async function filters() {
    step('filters of servers');
    const hostname = (await call('getServer', server)).hostname;
    const found = async function (filter) {
        const listed = await call('listServers', filter);
        return listed.some(function (one) { return one.uuid === server; });
    };
    for (const [filter, expected] of [
        [ { setup: true }, true ], [ { setup: 'FALSE' }, false ],
        [ { reserved: false }, true ], [ { reserved: true }, false ],
        [ { headnode: true }, false ], [ { reservoir: true }, false ],
        [ { hostname: hostname }, true ], [ { hostname: hostname + 'x' }, false ],
        [ { uuids: crypto.randomUUID() }, false ],
        [ { offset: '18446744073709551616' }, false ]
    ]) {
        assert.strictEqual(await found(filter), expected, JSON.stringify(filter));
    }
}

// As vmapi asks, with a package of an old data centre.
async function allocation() {
    step('allocation');
    const asked = {
        vm: { vm_uuid: crypto.randomUUID(), owner_uuid: crypto.randomUUID(), ram: 64,
            brand: 'joyent-minimal', cpu_cap: 50, quota: 1 },
        image: {}, nic_tags: [],
        'package': { max_physical_memory: 64, cpu_cap: 50, quota: 1024, traits: '',
            min_platform: { '7.0': '20130122T122401Z' } }
    };
    const answer = await call('post', '/allocate', asked);
    assert.strictEqual(answer.server.uuid, server, JSON.stringify(answer));
    assert(answer.server.sysinfo['Network Interfaces']);
    assert(Array.isArray(answer.steps) && Array.isArray(answer.imgapiPeers));
}

async function tickets() {
    step('tickets');
    const expires = new Date(Date.now() + 600000).toISOString();
    const wanted = { scope: 'vm', id: crypto.randomUUID(), expires_at: expires, action: 'boot' };
    const first = await call('waitlistTicketCreate', server, wanted);
    const second = await call('waitlistTicketCreate', server, wanted);
    assert.deepStrictEqual(second.queue.map(function (t) { return [t.uuid, t.status]; }),
        [[first.uuid, 'active'], [second.uuid, 'queued']]);
    await call('waitlistTicketWait', first.uuid);
    let active = false;
    const waiting = call('waitlistTicketWait', second.uuid).then(function () { active = true; });
    assert.strictEqual((await call('waitlistTicketGet', second.uuid)).status, 'queued');
    assert.strictEqual(active, false);
    await call('waitlistTicketRelease', first.uuid);
    await waiting;
    assert.strictEqual((await call('waitlistTicketGet', first.uuid)).status, 'finished');
    assert.strictEqual((await call('waitlistTicketGet', second.uuid)).status, 'active');
    await call('waitlistTicketRelease', second.uuid);
    await refused('ResourceNotFound', 404, 'waitlistTicketGet', crypto.randomUUID());
}

async function vms() {
    step('virtual machines');
    await finished(await call('ensureImage', server, { image_uuid: image }));
    const uuid = crypto.randomUUID();
    const payload = {
        uuid: uuid, brand: 'kvm', alias: 'sdc', ram: 192, vcpus: 1, owner_uuid: crypto.randomUUID(),
        image: { uuid: image, files: [ { compression: 'none' } ] },
        disks: [ { image_uuid: image, boot: true, model: 'virtio' } ]
    };
    await refused('InvalidParameters', 409, 'createVm', server, { uuid: uuid });
    const created = await finished(await call('createVm', server, payload));
    assert.strictEqual(created.vm.uuid, uuid);
    assert.strictEqual((await call('getVm', server, uuid)).state, 'running');
    const vm = '/servers/' + server + '/vms/' + uuid;
    const power = async function (method, state) {
        step(method);
        await finished(await call(method, server, uuid));
        assert.strictEqual((await call('getVm', server, uuid)).state, state);
    };
    const names = async function () {
        return (await call('getVm', server, uuid)).snapshots.map(function (one) { return one.name; });
    };
    step('snapshot and update');
    await finished(await call('put', vm + '/snapshots', { snapshot_name: 'before' }));
    assert.deepStrictEqual(await names(), [ 'before' ]);
    const change = { alias: 'sdc2', set_customer_metadata: { a: 'b' } };
    await finished(await call('post', vm + '/update', change));
    const updated = await call('getVm', server, uuid);
    assert.strictEqual(updated.alias, 'sdc2');
    assert.strictEqual(updated.customer_metadata.a, 'b');
    await power('rebootVm', 'running');
    await power('stopVm', 'stopped');
    step('rollback');
    await finished(await call('put', vm + '/snapshots/before/rollback', {}));
    await finished(await call('del', vm + '/snapshots/before'));
    assert.deepStrictEqual(await names(), []);
    await power('startVm', 'running');
    step('kill');
    const killed = await finished(await call('post', vm + '/kill', { signal: 'SIGKILL' }));
    assert.strictEqual(killed.vm.state, 'stopped');
    await finished(await call('deleteVm', server, uuid));
    const gone = await refused('ResourceNotFound', 404, 'getVm', server, uuid);
    assert.strictEqual(gone.message, 'VM ' + uuid + ' not found');
}

async function tasks() {
    step('tasks');
    await refused('ResourceNotFound', 404, 'getTask', crypto.randomUUID());
    const failing = await call('post', '/servers/' + server + '/nop', { error: 'boom' });
    const ended = await call('waitTask', failing.id, { timeout: 60 });
    assert.strictEqual(ended.status, 'failure');
    assert.strictEqual(ended.history[0].event.error.message, 'boom');
    let task = null;
    await new Promise(function (resolve) {
        cnapi.pollTask(failing.id, {}, function (err, found) {
            assert.strictEqual(err && err.message, 'task failed');
            task = found;
            resolve();
        });
    });
    assert.strictEqual(task.id, failing.id);
    await refused('NotAuthorized', 403, 'commandExecute', server, '#!/bin/sh\necho hi\n', {}, {});
}

// A job by the uuid that an answer names, once it has ended; as the workflow API serves it.
async function job(answer) {
    assert(answer.job_uuid, JSON.stringify(answer));
    for (;;) {
        const found = await call('get', '/jobs/' + answer.job_uuid);
        if (found.execution === 'succeeded' || found.execution === 'failed') {
            return found;
        }
        await new Promise(function (resolve) { setTimeout(resolve, 200); });
    }
}

async function jobs() {
    step('jobs');
    await call('refreshSysinfoAndWait', server, url);
    if (mac) {
        const nics = [ { mac: mac, nic_tags_provided: [ 'sdctest' ] } ];
        const ended = await job(await call('updateNics', server, { action: 'update', nics: nics }));
        assert.strictEqual(ended.execution, 'succeeded', JSON.stringify(ended));
        assert(ended.chain_results.length > 0);
        const nic = Object.values((await call('getServer', server)).sysinfo['Network Interfaces'])
            .find(function (one) { return one['MAC Address'] === mac; });
        assert(nic['NIC Names'].includes('sdctest'), JSON.stringify(nic));
    }
    const bad = { action: 'explode', nics: [] };
    await refused('InvalidParameters', 409, 'updateNics', server, bad);
    const listed = await call('get', '/jobs?server_uuid=' + server + '&limit=1');
    assert(Array.isArray(listed));
    assert.strictEqual(listed.length, mac ? 1 : 0, JSON.stringify(listed));
}

(async function main() {
    await servers();
    await boot();
    await filters();
    await capacity();
    await allocation();
    await tickets();
    await vms();
    await tasks();
    await jobs();
    step('all went as it must');
    cnapi.close();
})().catch(function (err) {
    console.error(err.stack || err);
    if (err.body) {
        console.error(JSON.stringify(err.body));
    }
    process.exit(1);
});
