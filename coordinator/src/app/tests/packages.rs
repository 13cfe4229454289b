//! Packages: whose a name is, and which version is changed.

use muster_shared::api::package::Package;

use super::*;
use crate::store::Held;

fn members(name: &str, more: &Value) -> Object {
    let mut members = Object::of(&json!({ "name": name, "max_physical_memory": 512 }));
    members.extend(Object::of(more));
    members
}

async fn make(app: &Arc<App>, name: &str, more: &Value) -> Held<Package> {
    app.packages.create(&members(name, more)).await.unwrap()
}

async fn names(app: &Arc<App>) -> Vec<String> {
    app.packages.list().await.unwrap().into_iter().map(|package| package.name).collect()
}

#[tokio::test(start_paused = true)]
async fn a_name_and_a_uuid_are_one_package_s() {
    let disk = Disk::new();
    let app = disk.start().await;
    let (one, other) = (members("small", &json!({})), members("small", &json!({ "vcpus": 2 })));
    let (one, other) = tokio::join!(app.packages.create(&one), app.packages.create(&other));
    let [made, refused] = if one.is_ok() { [one, other] } else { [other, one] };
    let made = made.unwrap().value;
    assert!(matches!(refused, Err(AppError::PackageExists(name)) if name == "small"));
    let same_uuid = members("large", &json!({ "uuid": made.uuid }));
    let refused = app.packages.create(&same_uuid).await;
    assert!(matches!(refused, Err(AppError::PackageExists(uuid)) if uuid == made.uuid.to_string()));
    assert_eq!(names(&app).await, ["small"], "a refusal leaves nothing");
    app.shutdown().await;

    // They outlive a coordinator, and are found by both.
    let app = disk.start().await;
    for named in ["small", &made.uuid.to_string(), &made.uuid.to_string().to_uppercase()] {
        assert_eq!(app.packages.get(named).await.unwrap().value, made);
    }
    for none in ["large", "a b", &Uuid::from_u128(1).to_string(), &"x".repeat(1000)] {
        let missing = app.packages.get(none).await;
        assert!(matches!(missing, Err(AppError::PackageNotFound(_))), "{missing:?}");
    }
    app.packages.delete(&made.uuid.to_string(), &Expected::ANY).await.unwrap();
    let again = app.packages.delete("small", &Expected::ANY).await;
    assert!(matches!(again, Err(AppError::PackageNotFound(_))));
    // Name and uuid are free again.
    make(&app, "small", &json!({ "uuid": made.uuid })).await;
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn changes_are_of_the_version_that_was_read() {
    let app = Disk::new().start().await;
    let first = make(&app, "small", &json!({ "vcpus": 2 })).await;
    let of_first = Expected::one_of(vec![first.revision.to_string()]);
    let change = |vcpus: Value| Object::from_iter([("vcpus", vcpus)]);
    let same = app.packages.change("small", &change(json!(2)), &of_first).await.unwrap();
    assert_eq!(same.revision, first.revision, "what changes nothing is not written");
    let changed = app.packages.change("small", &change(Value::Null), &of_first).await.unwrap();
    assert_eq!((changed.value.vcpus, changed.value.uuid), (None, first.value.uuid));
    assert_eq!(app.packages.get("small").await.unwrap().revision, changed.revision);
    let stale = app.packages.change("small", &change(json!(4)), &of_first).await;
    assert!(matches!(stale, Err(AppError::Changed)));
    assert!(matches!(app.packages.delete("small", &of_first).await, Err(AppError::Changed)));
    let bad = app.packages.change("small", &change(json!(0)), &Expected::ANY).await;
    assert!(matches!(bad, Err(AppError::Invalid(errors)) if errors[0].field == "vcpus"));
    app.shutdown().await;
}
