//! The machine restarts: its guests leave in order, and come back in order.

use std::time::Duration;

use serde_json::json;

use muster_tests::system::node::{LONG, Node, console};

/// Until systemd is up again, with all that leaves before.
const RESTART: Duration = Duration::from_secs(420);

/// 0.2 s.
const MOMENT_TICKS: u64 = 20;

#[tokio::test]
async fn guests_leave_with_a_real_host_in_order_and_come_back_in_order() {
    let node = Node::start().await;
    let system = &node.system;
    let mut vms = Vec::new();
    for (alias, priority) in [("database", 1), ("cache", 2), ("once", 3)] {
        let wishes = json!({
            "autoboot": true, "internal_metadata": { "muster:boot_priority": priority },
        });
        vms.push(node.create(alias, "button", &wishes).await);
    }
    // Made without it, it would not have been started.
    node.update(&vms[2], &json!({ "autoboot": false })).await;
    let boot = system.run("cat /proc/sys/kernel/random/boot_id").await;
    system.run("systemd-run --quiet --no-block systemctl reboot").await;
    let other = format!("[ $(cat /proc/sys/kernel/random/boot_id) != {} ]", boot.trim());
    system.wait("the machine is up again", RESTART, &other).await;

    let report = system
        .run("journalctl --no-pager -b -1 -o cat -u muster-guests-shutdown | grep '^.*VM '")
        .await;
    println!("{report}");
    let lines: Vec<&str> = report.lines().collect();
    assert_eq!(lines.len(), 3, "{report}");
    for (line, alias) in lines.iter().zip(["once", "cache", "database"]) {
        assert!(line.contains(&format!("({alias}) shut down")), "{report}");
    }
    for vm in &vms {
        let printed = system.run(&format!("cat {}", console(vm))).await;
        assert!(printed.contains("button: up\nbutton: pressed\nbutton: off\n"), "{printed:?}");
    }

    node.wait_usable().await;
    for vm in &vms[..2] {
        let twice = format!("[ $(grep -c 'button: up' {}) = 2 ]", console(vm));
        system.wait("it is up again", LONG, &twice).await;
    }
    let (database, cache) = (node.process(&vms[0]).await, node.process(&vms[1]).await);
    let ticks = |process: &str| -> u64 {
        process.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a start time")
    };
    println!("started at ticks: database {}, cache {}", ticks(&database), ticks(&cache));
    // Up to four start at a time, so the second may overtake the first in the last moment.
    assert!(ticks(&database) <= ticks(&cache) + MOMENT_TICKS, "the database starts first");
    let once = node.vm(&vms[2]).await;
    assert_eq!((&once["state"], &once["autoboot"]), (&json!("stopped"), &json!(false)), "{once}");
}
