use serde_json::{Value, json};

use super::*;
use crate::drivers::images::RuntimeConfig;
use crate::vms::sim::record;

const ALL: Offered = Offered { memory: true, swap: true, cpu: true, pids: true, unified: false };

fn vm(properties: Value) -> VmRecord {
    let Value::Object(properties) = properties else { panic!("an object") };
    VmRecord { properties, ..record(0xabc) }
}

fn image() -> RuntimeConfig {
    RuntimeConfig {
        entrypoint: vec!["/entry".to_owned()],
        cmd: vec!["serve".to_owned()],
        env: vec!["A=1".to_owned(), "B=2".to_owned()],
        working_dir: Some("/srv".to_owned()),
        user: Some("web".to_owned()),
        ..RuntimeConfig::default()
    }
}

/// As a runtime reads it.
fn built(vm: &VmRecord, namespace: Option<&Path>, offered: Offered) -> Value {
    let program = Program::of(vm, &image()).unwrap();
    let ids = Ids { uid: 33, gid: 34, groups: vec![40] };
    let input = Input {
        vm,
        program: &program,
        ids: &ids,
        root: Path::new("/roots/x/root"),
        etc: vec![("hosts", PathBuf::from("/data/hosts"))],
        namespace,
        own_ids: None,
        devices: None,
        cgroup: "/muster-vms/x",
        offered,
    };
    serde_json::to_value(build(&input).unwrap()).unwrap()
}

#[test]
fn a_container_is_confined_unless_somebody_says_otherwise() {
    let spec = built(&vm(json!({ "hostname": "one" })), None, ALL);
    let process = &spec["process"];
    assert_eq!(process["noNewPrivileges"], true);
    assert_eq!(process["user"], json!({ "uid": 33, "gid": 34, "additionalGids": [40] }));
    let bounding = process["capabilities"]["bounding"].as_array().unwrap();
    assert!(bounding.contains(&json!("CAP_CHOWN")) && bounding.len() == 14);
    for refused in ["CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_PTRACE"] {
        assert!(!bounding.contains(&json!(refused)), "{refused}");
    }
    assert_eq!(process["capabilities"]["ambient"], json!([]));
    let linux = &spec["linux"];
    let has = |list: &Value, path: &str| list.as_array().unwrap().contains(&json!(path));
    assert!(has(&linux["maskedPaths"], "/proc/kcore") && has(&linux["readonlyPaths"], "/proc/sys"));
    assert_eq!(linux["seccomp"]["defaultAction"], "SCMP_ACT_ALLOW");
    let calls = linux["seccomp"]["syscalls"].to_string();
    for refused in ["\"mount\"", "\"bpf\"", "\"kexec_load\"", "\"clone3\"", "\"unshare\""] {
        assert!(calls.contains(refused), "{refused}");
    }
    assert_eq!(linux["resources"]["devices"], json!([{ "allow": false, "access": "rwm" }]));
    let kinds: Vec<&str> = linux["namespaces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ns| ns["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["pid", "ipc", "uts", "mount", "cgroup", "network"]);
    assert_eq!(spec["hostname"], "one");
    assert_eq!(spec["root"], json!({ "path": "/roots/x/root", "readonly": false }));
}

#[test]
fn its_program_is_the_images_unless_metadata_says_otherwise() {
    let spec = built(&vm(json!({})), None, ALL);
    let process = &spec["process"];
    assert_eq!((&process["args"], &process["cwd"]), (&json!(["/entry", "serve"]), &json!("/srv")));
    let env = process["env"].as_array().unwrap();
    assert!(env[0].as_str().unwrap().starts_with("PATH=") && env.contains(&json!("B=2")));
    let of = |metadata: Value| Program::of(&vm(json!({ "internal_metadata": metadata })), &image());
    let cmd = of(json!({ "docker:cmd": "[\"other\"]", "docker:env": "[\"A=3\"]" })).unwrap();
    assert_eq!(cmd.argv, ["/entry", "other"]);
    assert!(cmd.env.contains(&"A=3".to_owned()) && !cmd.env.contains(&"A=1".to_owned()));
    let entry = of(json!({
        "docker:entrypoint": "[\"/bin/sh\"]", "docker:tty": true, "docker:workdir": "tmp",
        "docker:user": "0",
    }));
    let entry = entry.unwrap();
    assert_eq!((entry.argv.len(), entry.terminal, entry.dir.as_str()), (1, true, "/tmp"));
    assert_eq!(entry.user.as_deref(), Some("0"));
    let bare = Program::of(&vm(json!({})), &RuntimeConfig::default()).unwrap();
    assert_eq!(bare.argv, ["/sbin/init"]);
    let init = Program::of(&vm(json!({ "init_name": "/init" })), &image()).unwrap();
    assert_eq!(init.argv, ["/init"]);
    for bad in ["sh", "[1]", "{}", "[\"\\u0000\"]"] {
        let error = of(json!({ "docker:cmd": bad })).unwrap_err().to_string();
        assert!(error.contains("docker:cmd"), "{error}");
    }
}

#[test]
fn limits_are_those_of_the_record_that_the_host_has() {
    let record = vm(json!({
        "max_physical_memory": 64, "max_swap": 256, "cpu_cap": 150, "cpu_shares": 200,
        "max_lwps": 77,
    }));
    let resources = |offered| built(&record, None, offered)["linux"]["resources"].clone();
    let all = resources(ALL);
    assert_eq!(all["memory"], json!({ "limit": 64 << 20, "swap": 256 << 20 }));
    assert_eq!(all["cpu"], json!({ "shares": 2048, "quota": 150_000, "period": 100_000 }));
    assert_eq!(all["pids"], json!({ "limit": 77 }));
    let unified = resources(Offered { unified: true, swap: false, ..ALL });
    assert_eq!(unified["unified"], json!({ "cpu.weight": "200" }));
    assert_eq!(unified["memory"], json!({ "limit": 64 << 20 }));
    assert!(unified["cpu"].get("shares").is_none());
    let none = resources(Offered::default());
    assert!(["memory", "cpu", "pids"].iter().all(|kind| none.get(kind).is_none()), "{none}");
    assert_eq!(Offered::default().missing().len(), 3);
    assert!(ALL.missing().is_empty());
    let plain = built(&vm(json!({})), None, ALL)["linux"]["resources"].clone();
    assert_eq!(plain["cpu"]["quota"], -1);
    assert_eq!(plain["pids"]["limit"], 2000);
}

#[test]
fn it_has_the_namespace_and_the_files_that_were_made_for_it() {
    let record = vm(json!({
        "hostname": "web", "dns_domain": "example.org", "resolvers": ["10.0.0.2", "evil\nx"],
        "nics": [{ "ips": ["10.0.0.5/24", "dhcp"] }], "tmpfs": 128, "max_physical_memory": 64,
    }));
    let spec = built(&record, Some(Path::new("/run/netns/x")), ALL);
    let namespaces = spec["linux"]["namespaces"].as_array().unwrap();
    assert!(namespaces.contains(&json!({ "type": "network", "path": "/run/netns/x" })));
    let mounts = spec["mounts"].as_array().unwrap();
    let at = |place: &str| mounts.iter().find(|mount| mount["destination"] == place);
    assert_eq!(at("/etc/hosts").unwrap()["source"], "/data/hosts");
    // Never more than its memory.
    assert!(at("/tmp").unwrap()["options"].to_string().contains("size=67108864"));
    assert!(at("/sys").unwrap()["options"].to_string().contains("\"ro\""));
    assert_eq!(etc(&record, "hostname"), "web\n");
    assert!(etc(&record, "hosts").ends_with("10.0.0.5\tweb.example.org web\n"));
    assert_eq!(etc(&record, "resolv.conf"), "search example.org\nnameserver 10.0.0.2\n");
}
