//! For planners: how many of a VM still fit, and what is stranded.

use muster_shared::api::Object;
use serde_json::{Value, json};

use super::ask::creates;
use super::{Placement, invalid, machine, parse};
use crate::alloc::{Extra, Fit, Fitted, ServerName, Unreserved, fit, num, parse_capacity};
use crate::app::error::AppError;
use crate::app::packages::for_allocator;

/// Servers looked at between two pauses, in which others get their turn.
const PART: usize = 50;

impl Placement {
    /// `POST /capacity/plan`: per server and for the fleet, how many of the request's VM still fit
    /// and what would be left over. The body is that of an allocation; what names the VM and its
    /// owner may be missing.
    ///
    /// # Errors
    /// [`AppError::Invalid`].
    pub async fn plan(&self, body: &Object) -> Result<Value, AppError> {
        let only = parse_capacity(body.as_map()).map_err(invalid)?;
        let mut body = body.clone();
        body.remove("servers");
        body.set_default("vm", json!({}));
        let package = self.packages.complete_question(&mut body).await?;
        let package = package.as_ref().map(for_allocator);
        fill(&mut body);
        let allocation = &self.ctx.config.allocation;
        let (request, extra, policy) = if creates(&body)? {
            let (body, spec) = machine::as_create(&body, package.as_ref())?;
            (parse(&body)?, Extra::of_new_vm(&spec), &allocation.placing)
        } else {
            let request = parse(&body)?;
            let extra = request.promise();
            (request, extra, &allocation.policy)
        };
        let snapshot = self.snapshot();
        let wanted = |server: &&ServerName| {
            let is_named = |only: &Vec<_>| server.uuid().is_some_and(|uuid| only.contains(&uuid));
            only.as_ref().is_none_or(is_named)
        };
        let servers: Vec<&ServerName> = snapshot.servers().filter(wanted).collect();
        let mut found: Vec<Fit> = Vec::with_capacity(servers.len());
        for part in servers.chunks(PART) {
            found.extend(part.iter().filter_map(|server| {
                fit(&snapshot, server, Fitted { request: &request, extra: &extra }, policy)
            }));
            tokio::task::yield_now().await;
        }
        let (mut fits, mut unreserved, mut stranded) =
            (0_u32, Unreserved::default(), Unreserved::default());
        for fit in &found {
            fits = fits.saturating_add(fit.fits);
            add(&mut unreserved, fit.unreserved);
            add(&mut stranded, fit.stranded);
        }
        let servers: Vec<Value> = found.iter().map(|fit| self.fit_view(fit)).collect();
        Ok(json!({
            "servers": servers,
            "fleet": {
                "servers": found.len(),
                "fits": fits,
                "unreserved": unreserved.to_json(),
                "stranded": stranded.to_json(),
            },
        }))
    }

    fn fit_view(&self, fit: &Fit) -> Value {
        let mut view = json!(fit);
        let server = fit.server_uuid.uuid();
        let hostname = server.and_then(|server| self.fleet.hostname(server));
        view["hostname"] = json!(hostname);
        view
    }
}

/// Adds what a server has; what it owes already does not make up for what another has.
pub(super) fn add(total: &mut Unreserved, more: Unreserved) {
    total.cpu += more.cpu.max(0.0);
    total.ram += more.ram.max(0.0);
    total.disk += more.disk.max(0.0);
}

/// Gives the VM what an allocation needs and a plan does not: a name, an owner, a memory size.
fn fill(body: &mut Object) {
    let nobody = json!(uuid::Uuid::nil());
    let memory = body.get("package").and_then(|p| p.get("max_physical_memory")).cloned();
    body.set_default("image", json!({}));
    body.set_default("nic_tags", json!([]));
    let vm = body.slot("vm");
    if let Value::Object(vm) = vm {
        vm.entry("vm_uuid").or_insert_with(|| nobody.clone());
        vm.entry("owner_uuid").or_insert(nobody);
        vm.entry("ram")
            .or_insert_with(|| memory.filter(Value::is_number).unwrap_or(num::json(0.0)));
    }
}
