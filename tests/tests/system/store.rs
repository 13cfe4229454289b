//! The disk under the coordinator's store goes while clients write: it ends with exit code 70, systemd
//! starts it again, and nothing that it acknowledged is lost.

use muster_tests::system::System;

use muster_tests::system::node::{LONG, Node};

const DATA: &str = "/var/lib/private/muster-coordinator";
/// Whose file system fails.
const DISK: &str = "/dev/disk/by-id/virtio-spare0";

/// Gives the data folder a file system of its own, which its first error makes read-only.
const MOVE_TO_DISK: &str = "set -eu
systemctl stop muster-coordinator
mkfs.ext4 -q -e remount-ro $DISK
mkdir /mnt/disk
mount $DISK /mnt/disk
cp -a $DATA/. /mnt/disk
umount /mnt/disk
mount $DISK $DATA
systemctl start muster-coordinator";

/// Four clients make tickets, one after the other, and note which were acknowledged.
const START_CLIENTS: &str = r#"set -eu
mkdir /root/made
cat >/root/client.sh <<'END'
tickets=http://127.0.0.1:8480/servers/default/tickets
for ((i = 1; ; i++)); do
    ticket="{\"scope\":\"client $1\",\"id\":\"$i\",\"expires_at\":\"3000\"}"
    code=$(curl -sS -m 30 -o /root/made/$1.answer -w '%{http_code}' \
        -H content-type:application/json -d "$ticket" $tickets)
    if [ "$code" = 202 ]; then
        grep -o '"uuid":"[^"]*"' /root/made/$1.answer | head -n 1 | cut -d'"' -f4 >>/root/made/$1.uuids
    else
        sleep 0.2
    fi
    echo "$code" >>/root/made/$1.codes
done
END
for n in 1 2 3 4; do systemd-run -q --unit=client-$n bash /root/client.sh $n; done"#;

/// Asks for each ticket that was acknowledged; prints how many there are, and how many are found.
const LOOK: &str = r#"set -eu
systemctl stop client-1 client-2 client-3 client-4
cat /root/made/*.uuids | while read uuid; do
    printf 'url = "http://127.0.0.1:8480/tickets/%s"\noutput = /dev/null\n' $uuid
done >/root/urls
cat /root/made/*.uuids | wc -l
curl -sS -w '%{http_code}\n' -K /root/urls | grep -c 200"#;

fn on_disk(script: &str) -> String {
    script.replace("$DATA", DATA).replace("$DISK", DISK)
}

async fn count(system: &System, what: &str) -> u64 {
    system.run(what).await.trim().parse().expect("a number")
}

/// Clients are served: each of them some more.
async fn acknowledge_some(system: &System) {
    let before = count(system, "cat /root/made/*.codes 2>/dev/null | grep -c 202 || true").await;
    let more = format!("[ $(cat /root/made/*.codes | grep -c 202) -gt {} ]", before + 20);
    system.wait("tickets are made", LONG, &more).await;
}

/// The coordinator has ended with exit code 70 this many times since the machine came up, and been
/// started again since.
async fn restarted(system: &System, times: u64, restarts: u64) {
    let ended = "journalctl --no-pager -o cat -u muster-coordinator | grep -c 'status=70'";
    let restart = "systemctl show muster-coordinator -p NRestarts --value";
    let script = format!("[ $({ended}) = {times} ] && [ $({restart}) -ge {restarts} ]");
    system.wait("systemd has started it again", LONG, &script).await;
}

#[tokio::test]
async fn a_coordinator_whose_store_goes_is_started_again_and_loses_nothing() {
    let node = Node::start().await;
    let system = &node.system;
    let moved = system.try_run(&on_disk(MOVE_TO_DISK), LONG).await.expect("the machine answers");
    assert_eq!(moved.code, 0, "{moved:#?}");
    system.run(START_CLIENTS).await;
    acknowledge_some(system).await;

    system.run(&on_disk("mv $DATA/store $DATA/aside")).await;
    // The second time without a store: it makes none in its place.
    restarted(system, 1, 2).await;
    system.run(&on_disk("! [ -e $DATA/store ] && mv $DATA/aside $DATA/store")).await;
    node.wait_usable().await;
    acknowledge_some(system).await;

    system
        .run(&on_disk("echo 1 >/sys/fs/ext4/$(basename $(readlink -f $DISK))/trigger_fs_error"))
        .await;
    system.run(&on_disk("! touch $DATA/probe")).await;
    restarted(system, 2, 1).await;
    let repair = "systemctl stop muster-coordinator; umount $DATA; e2fsck -p $DISK; set -e; \
                  mount $DISK $DATA; systemctl start muster-coordinator";
    let repaired = system.try_run(&on_disk(repair), LONG).await.expect("the machine answers");
    assert_eq!(repaired.code, 0, "{repaired:#?}");
    node.wait_usable().await;
    acknowledge_some(system).await;

    let looked = system.try_run(LOOK, LONG).await.expect("the machine answers");
    assert_eq!(looked.code, 0, "{looked:#?}");
    println!("{}", system.run("sort /root/made/*.codes | uniq -c").await);
    let ended = "journalctl --no-pager -o cat -u muster-coordinator | grep 'Main process exited'";
    println!("{}", system.run(ended).await);
    let numbers: Vec<u64> = looked.stdout.lines().filter_map(|line| line.parse().ok()).collect();
    let [acknowledged, found] = numbers[..] else { panic!("{looked:?}") };
    println!("{acknowledged} tickets were acknowledged, {} are lost", acknowledged - found);
    assert_eq!(found, acknowledged);
}
